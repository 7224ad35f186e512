#include "day10_sparse/sparse_options.h"

#include <map>

#include "common/lab/cli.h"

namespace kvlab {
namespace {

const std::map<std::string, ImportanceUse> kImportanceUses = {
    {"raw", ImportanceUse::kRaw},
    {"per-viewer", ImportanceUse::kPerViewer},
    {"off", ImportanceUse::kOff}};

}  // namespace

void DeclareBlockOptions(CLI::App& app, SparseOptions& options) {
  app.add_option("--block-size", options.block_tokens, "Tokens in a block")
      ->transform(WholeNumber(16, 64))
      ->check(CLI::IsMember({16, 32, 64}))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--n-probe", options.n_probe, "Keys to probe in a full block")
      ->transform(WholeNumber(0, 1'000'000))
      ->capture_default_str()
      ->type_name("N");
}

void DeclareImportance(CLI::App& app, std::string& importance) {
  app.add_option("--importance", importance,
                 "What half of the places are reserved by: the attention that "
                 "the prompt gave a token (raw), the same divided by the "
                 "queries that could see it (per-viewer), or nothing (off)")
      ->check(CLI::IsMember(kImportanceUses))
      ->capture_default_str()
      ->type_name("USE");
}

ImportanceUse ParseImportance(const std::string& importance) {
  return kImportanceUses.at(importance);
}

CLI::Option* DeclareDenseBelow(CLI::App& app, SparseOptions& options) {
  return app
      .add_option("--dense-below", options.dense_below,
                  "Attend over all blocks of a context shorter than this")
      ->transform(WholeNumber(0, 1'000'000'000))
      ->capture_default_str()
      ->type_name("TOKENS");
}

}  // namespace kvlab
