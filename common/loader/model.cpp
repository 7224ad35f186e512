#include "common/loader/model.h"

#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/loader/json.h"
#include "common/loader/model_files.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;

/// Rows of the embedding may go unused (they are padded to round numbers), but
/// a token without a row could not be read.
void CheckVocabulary(const fs::path& file, const Tokenizer& tokenizer,
                     const ModelConfig& config) {
  if (tokenizer.size() <= config.vocab_size) return;
  Fail(PathText(file), ": expected ids below vocab_size ", config.vocab_size,
       " of config.json, found ids up to ", tokenizer.size() - 1,
       "; do the two files belong together?");
}

}  // namespace

Model LoadModel(const fs::path& directory) {
  ModelWeights loaded = LoadWeights(directory);
  const fs::path tokenizer_file = directory / "tokenizer.json";
  Model model{.directory = directory,
              .config = loaded.config,
              .weights = std::move(loaded.weights),
              .files = std::move(loaded.files),
              .tokenizer = Tokenizer::Load(tokenizer_file),
              .chat = std::nullopt,
              .chat_problem = "",
              .eos_ids = ReadEosIds(directory, loaded.config.vocab_size)};
  CheckVocabulary(tokenizer_file, model.tokenizer, model.config);
  try {
    model.chat = ChatTemplate::Load(directory);
  } catch (const Error& e) {  // no obstacle for --raw
    model.chat_problem = e.what();
  }
  return model;
}

ModelWeights LoadWeights(const fs::path& directory) {
  ModelWeights loaded;
  // The directory first: "no config.json" is a riddle for a mistyped path.
  CheckDirectory(directory);
  loaded.config = ReadModelConfig(directory);
  std::shared_ptr<ModelFiles> files = ModelFiles::Open(directory);
  loaded.weights = BuildWeights(loaded.config, files.get());
  loaded.files = std::move(files);
  return loaded;
}

}  // namespace kvlab
