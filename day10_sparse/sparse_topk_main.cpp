/// \file
/// Stage 4 as a program: the needle question with attention over the k best
/// blocks.
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/lab/cli.h"
#include "common/lab/stage_main.h"
#include "day10_sparse/sparse_topk.h"

namespace kvlab {
namespace {

const std::map<std::string, ImportanceUse> kImportanceUses = {
    {"raw", ImportanceUse::kRaw},
    {"per-viewer", ImportanceUse::kPerViewer},
    {"off", ImportanceUse::kOff}};

void DeclareSparseOptions(CLI::App& app, SparseOptions& o,
                          std::string& importance) {
  app.add_option("--sparse-k", o.k, "Blocks to attend over")
      ->transform(WholeNumber(1, 1'000'000))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--block-size", o.block_tokens, "Tokens in a block")
      ->check(CLI::IsMember({16, 32, 64}))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--n-probe", o.n_probe, "Keys to probe in a full block")
      ->transform(WholeNumber(0, 1'000'000))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--importance", importance,
                 "What half of the places are reserved by: the attention that "
                 "the prompt gave a token (raw), the same divided by the "
                 "queries that could see it (per-viewer), or nothing (off)")
      ->check(CLI::IsMember(kImportanceUses))
      ->capture_default_str()
      ->type_name("USE");
  app.add_flag("--sparse-prefill", o.sparse_prefill,
               "Let every prompt query choose its blocks too");
  app.add_option("--dense-below", o.dense_below,
                 "Attend over all blocks of a context shorter than this")
      ->transform(WholeNumber(0, 1'000'000'000))
      ->capture_default_str()
      ->type_name("TOKENS");
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  using namespace kvlab;
  SparseOptions options;
  std::string importance = "raw";
  SparseTimes times;
  const auto read = [&] {
    options.importance = kImportanceUses.at(importance);
    return options;
  };
  return StageMain(
      argc, argv,
      {.name = "day10_sparse_topk",
       .description = "Stage 4: attention over the k best blocks of the cache.",
       .kv = KvFormat::kQ8,
       .has_kv = true,
       .make_stage =
           [&](const StageSettings& settings) {
             auto stage =
                 std::make_unique<SparseTopK>(settings.primitives, read());
             stage->Time(&times);
             return stage;
           },
       .sparse =
           [&] {
             return nlohmann::ordered_json{
                 {"k", options.k},
                 {"block_size", options.block_tokens},
                 {"n_probe", options.n_probe},
                 {"importance", importance},
                 {"sparse_prefill", options.sparse_prefill},
                 {"dense_below", options.dense_below}};
           },
       .select_share = [&] { return times.TakeSelectShare(); },
       .declare_options =
           [&](CLI::App& app) {
             DeclareSparseOptions(app, options, importance);
           }});
}
