/// \file
/// Stage 4 as a program: the needle question with attention over the k best
/// blocks.
#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/lab/cli.h"
#include "common/lab/gnuplot.h"
#include "common/lab/stage_main.h"
#include "day10_sparse/block_map.h"
#include "day10_sparse/sparse_options.h"
#include "day10_sparse/sparse_topk.h"

namespace kvlab {
namespace {

void DeclareSparseOptions(CLI::App& app, SparseOptions& o,
                          std::string& importance) {
  app.add_option("--sparse-k", o.k, "Blocks to attend over")
      ->transform(WholeNumber(1, 1'000'000))
      ->capture_default_str()
      ->type_name("N");
  DeclareBlockOptions(app, o);
  DeclareImportance(app, importance);
  app.add_flag("--sparse-prefill", o.sparse_prefill,
               "Let every prompt query choose its blocks too");
  DeclareDenseBelow(app, o);
}

/// --map and --map-svg.
class MapView final : public StageView {
 public:
  /// Keeps a reference to the options, which are read later.
  explicit MapView(const SparseOptions& options) : options_(options) {}

  void Declare(CLI::App& app) override {
    CLI::Option* show = app.get_option("--show-prompt");
    app.add_flag("--map", print_,
                 "Print which blocks each head took, a character a block")
        ->excludes(show)
        ->excludes(app.get_option("--json"));
    app.add_option("--map-svg", svg_,
                   "Draw which blocks each head took (needs gnuplot)")
        ->transform(OutputName())
        ->excludes(show)
        ->type_name("FILE");
  }
  bool wanted() const override { return print_ || !svg_.empty(); }
  std::string_view option() const override { return "--map"; }
  std::pair<const char*, std::string> file() const override {
    return {"--map-svg", svg_};
  }

  void Begin(const TraceFilter& filter, int prompt_tokens) override {
    if (!svg_.empty() && !HaveGnuplot()) Fail("--map-svg: ", kNoGnuplot);
    map_.emplace(filter, prompt_tokens);
    prompt_tokens_ = prompt_tokens;
  }
  void OnSelection(const HeadId& id, int block_tokens,
                   std::span<const BlockEvent> blocks) override {
    map_->OnSelection(id, block_tokens, blocks);
  }
  void Print(const ViewedRun& run) override {
    if (!print_ || map_->rows().empty()) return;
    std::cout << '\n'
              << BlockMapText(map_->rows(), Legend(run), TerminalColumns());
  }
  std::string Contents(const ViewedRun& run) override {
    if (map_->rows().empty()) {
      Fail(print_ ? "--map" : "--map-svg",
           ": nothing to show: ", map_->WhyEmpty());
    }
    if (svg_.empty()) return "";
    const int first = map_->rows().front().step;
    const int last = map_->rows().back().step;
    return DrawSvg(
        BlockMapScript(map_->rows(), Legend(run),
                       StrCat("Blocks that each query head takes, decode step",
                              first == last ? StrCat(" ", first)
                                            : StrCat("s ", first, " to ", last),
                              ": k = ", options_.k, ", ",
                              map_->rows().back().blocks.size(), " blocks"),
                       StrCat(Printable(run.model, 30), ", ", prompt_tokens_,
                              " tokens; answer: ", Printable(run.output, 60))));
  }

 private:
  MapLegend Legend(const ViewedRun& run) const {
    return {.block_tokens = options_.block_tokens,
            .needle = run.needle,
            .prompt_tokens = prompt_tokens_,
            .tokens = run.tokens};
  }

  const SparseOptions& options_;
  bool print_ = false;
  std::string svg_;
  int prompt_tokens_ = 0;
  std::optional<BlockMap> map_;
};

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  using namespace kvlab;
  SparseOptions options;
  std::string importance = "raw";
  SparseTimes times;
  MapView map(options);
  const auto read = [&] {
    options.importance = ParseImportance(importance);
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
           },
       .view = &map});
}
