/// \file
/// A Hugging Face model directory, loaded: what every program starts from.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/loader/chat.h"
#include "common/loader/config.h"
#include "common/loader/tokenizer.h"
#include "common/loader/weights.h"

namespace kvlab {

class ModelFiles;  // keeps the weight files mapped

/// Everything in a model directory. The weights point into mapped files that
/// live as long as the Model.
struct Model {
  std::filesystem::path directory;
  ModelConfig config;
  Weights weights;
  std::shared_ptr<const ModelFiles> files;
  Tokenizer tokenizer;
  /// Absent where the directory has no template, or none that this course
  /// knows: then only --raw works, and `chat_problem` is the message to show to
  /// who asks for a chat.
  std::optional<ChatTemplate> chat;
  std::string chat_problem;
  /// Generation stops on any of these: eos_token_id of generation_config.json
  /// (a number or a list), else of config.json.
  std::vector<int> eos_ids;
};

/// Loads config.json, model.safetensors (or shards with
/// model.safetensors.index.json), tokenizer.json, tokenizer_config.json and
/// generation_config.json. Nothing is copied but norm gains (and matrices at an
/// address that is not aligned). Throws Error, also if the tokenizer has more
/// ids than the embedding has rows.
Model LoadModel(const std::filesystem::path& directory);

/// Weights and config alone, for files that come without a tokenizer (tests).
struct ModelWeights {
  ModelConfig config;
  Weights weights;
  std::shared_ptr<const ModelFiles> files;
};
ModelWeights LoadWeights(const std::filesystem::path& directory);

}  // namespace kvlab
