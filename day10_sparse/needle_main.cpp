/// \file
/// The needle lab: the article's table on this machine, all stages side by side
/// and every budget of blocks; with --grid the same question hundreds of times.
#include <algorithm>
#include <iostream>
#include <optional>
#include <set>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/lab/cli.h"
#include "common/lab/csv.h"
#include "common/lab/gnuplot.h"
#include "common/lab/interrupt.h"
#include "common/lab/progress_line.h"
#include "common/loader/output_file.h"
#include "day10_sparse/needle_grid_report.h"
#include "day10_sparse/needle_journal.h"
#include "day10_sparse/needle_options.h"
#include "day10_sparse/needle_report.h"

namespace kvlab {
namespace {

constexpr char kName[] = "day10_needle";

void PrintJson(nlohmann::ordered_json json) {
  std::cout << json.dump(2, ' ', false,
                         nlohmann::ordered_json::error_handler_t::replace)
            << '\n';
}

void PrintSelection(const NeedleLab& o) {
  const SparseOptions& sparse = o.table.sparse;
  PrintLine("selection",
            StrCat("blocks of ", sparse.block_tokens, " tokens, ",
                   sparse.n_probe, " probed, importance ", o.table.importance));
}

void RunNeedleTable(const NeedleLab& o, const Model& model, Isa isa) {
  const TableSettings& t = o.table;
  const Prompt prompt = BuildPrompt(model, t.prompt);
  CheckLength(model, prompt, t.max_tokens);
  if (prompt.needle) {
    for (const std::string& warning : prompt.needle->warnings) Warn(warning);
  }
  if (!o.json) {
    PrintLine("model", ModelSummary(model));
    if (prompt.needle) {
      PrintLine("needle",
                StrCat('"', ForTerminal(prompt.needle->needle), "\" at depth ",
                       t.prompt.needle.depth, ", seed ", t.prompt.needle.seed));
      PrintLine("question", ForTerminal(prompt.needle->question));
    }
    PrintLine("prompt", StrCat(Count(prompt.tokens.size(), "token"),
                               t.prompt.raw ? ", no chat template" : ""));
    PrintSelection(o);
    PrintLine("ISA, threads", StrCat(IsaName(isa), ", ", t.threads));
    std::cout << std::endl;
  }
  ProgressLine progress;
  const std::vector<NeedleRun> runs =
      RunTable(t, model, prompt, PrimitivesFor(isa), [&](double done) {
        CheckInterrupted();
        progress.Show(done);
      });
  progress.Clear();
  const auto rows = NeedleRows(t, model, prompt, runs, isa);
  if (o.json) {
    PrintJson({{"program", kName}, {"version", Version()}, {"runs", rows}});
  } else {
    std::cout << NeedleText(t, runs, prompt.needle.has_value());
  }
  FinishStdout();  // a run that cannot report must not replace a file
  if (o.csv.empty()) return;
  OutputFile file(o.csv);
  file.Write(CsvText(rows));
  file.Commit();
}

/// Builds all prompts, so that one that cannot be built is told before hours of
/// work and before a journal is begun. It takes a hundredth of the time that
/// running them does, or less.
void CheckPrompts(const GridRunner& runner, const std::vector<UnitId>& units) {
  std::set<std::string> warnings;
  ProgressLine progress("prompts");
  for (std::size_t i = 0; i < units.size(); ++i) {
    CheckInterrupted();
    progress.Show(static_cast<double>(i) / static_cast<double>(units.size()));
    const Prompt prompt = runner.PromptOf(units[i]);
    warnings.insert(prompt.needle->warnings.begin(),
                    prompt.needle->warnings.end());
  }
  progress.Clear();
  for (const std::string& warning : warnings) Warn(warning);
}

/// Runs what is not done yet. Interrupted, it says how to go on.
std::vector<GridUnit> RunUnits(const NeedleLab& o, const Model& model, Isa isa,
                               const nlohmann::ordered_json& settings) {
  const GridSettings& g = o.grid;
  const std::vector<UnitId> units = GridUnits(g);
  GridRunner runner(g, model, PrimitivesFor(isa), o.table.threads);
  CheckPrompts(runner, units);
  std::optional<Journal> journal;
  std::vector<GridUnit> done;
  if (!o.journal.empty()) {
    nlohmann::ordered_json header = settings;
    header.update(Fingerprints(model));
    journal.emplace(o.journal, g, header);
    done = journal->units();
  }
  std::set<UnitId> known;
  for (const GridUnit& unit : done) known.insert(unit.id);
  // The work of a unit: its prefill grows as the square of its context.
  const auto work = [](const UnitId& id) {
    const double n = id.context;
    return n * (n + 2000);
  };
  double all = 0, behind = 0;
  for (const UnitId& id : units) {
    all += work(id);
    if (known.contains(id)) behind += work(id);
  }
  ProgressLine progress("grid", true);
  try {
    for (const UnitId& id : units) {
      if (known.contains(id)) continue;
      progress.Show(behind / all);
      done.push_back(runner.Run(id, CheckInterrupted));
      if (journal) journal->Append(done.back());
      behind += work(id);
    }
    if (journal) journal->RequireIntact();
  } catch (const Error& error) {
    if (error.exit_code() != kExitInterrupted) throw;
    const std::string damage = journal ? journal->Damage() : "";
    throw Error(
        StrCat("interrupted after ", done.size(), " of ", g.units(),
               " prompts; ",
               !journal ? "with --journal FILE the work would not be lost"
               : damage.empty()
                   ? "the same command goes on from there"
                   : StrCat("they are lost with the journal: ", damage)),
        kExitInterrupted);
  }
  std::ranges::sort(done, {}, &GridUnit::id);
  return done;
}

void RunGrid(const NeedleLab& o, const Model& model, Isa isa) {
  const GridSettings& g = o.grid;
  if ((!o.svg.empty() || !o.svg_arms.empty()) && !HaveGnuplot()) {
    Fail(o.svg.empty() ? "--svg-arms: " : "--svg: ", kNoGnuplot);
  }
  const auto settings = g.Json(model);
  const GridResults results{g, RunUnits(o, model, isa, settings)};
  const auto rows = GridRows(results);
  if (o.json) {
    PrintJson({{"program", kName},
               {"version", Version()},
               {"grid", settings},
               {"runs", rows}});
  } else {
    PrintLine("model", ModelSummary(model));
    PrintLine(
        "prompts",
        StrCat(g.units(), ", seeds ", g.prompt.needle.seed, " to ",
               g.prompt.needle.seed + static_cast<std::uint64_t>(g.seeds) - 1,
               ", KV ", FormatName(g.kv)));
    PrintSelection(o);
    std::cout << '\n' << GridText(results);
  }
  FinishStdout();
  const std::string subtitle =
      StrCat(Printable(ModelName(model), 30), ", KV ", FormatName(g.kv),
             ", seeds ", g.prompt.needle.seed, " to ",
             g.prompt.needle.seed + static_cast<std::uint64_t>(g.seeds) - 1);
  // All or none.
  std::optional<OutputFile> csv, svg, svg_arms;
  if (!o.csv.empty()) csv.emplace(o.csv).Write(CsvText(rows));
  if (!o.svg.empty()) {
    svg.emplace(o.svg).Write(DrawSvg(GridHeatmapScript(results, subtitle)));
  }
  if (!o.svg_arms.empty()) {
    svg_arms.emplace(o.svg_arms)
        .Write(DrawSvg(GridArmsScript(results, subtitle)));
  }
  for (auto* file : {&csv, &svg, &svg_arms}) {
    if (*file) (*file)->Commit();
  }
}

int Run(const NeedleLab& o) {
  const InterruptGuard interrupt_guard;
  const Isa isa = o.isa.empty() ? BestIsa() : ParseIsa(o.isa);
  RequireDistinctFiles({{"--csv", o.csv},
                        {"--svg", o.svg},
                        {"--svg-arms", o.svg_arms},
                        {"--journal", o.journal}},
                       {{"--prompt-file", o.table.prompt.file}});
  for (const std::string& file : {o.csv, o.svg, o.svg_arms}) {
    if (!file.empty()) const OutputFile probe(file);
  }
  const Model model = LoadModel(o.table.prompt.model);
  if (o.run_grid) {
    RunGrid(o, model, isa);
  } else {
    RunNeedleTable(o, model, isa);
  }
  return kExitDone;
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  using namespace kvlab;
  return RunProgram(
      argc, argv, kName,
      "The needle lab: the article's table on this machine, every stage and "
      "every number of blocks; with --grid, how often needles are found.",
      [](CLI::App& app) -> ProgramBody {
        const auto options = std::make_shared<NeedleLab>();
        DeclareNeedleOptions(app, *options);
        return [options, &app] {
          SettleNeedleOptions(app, *options);
          return Run(*options);
        };
      });
}
