/// \file
/// Lessons 10-1 and 10-3: what sparse attention gains as the context grows,
/// what it costs in quality, and where it loses.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/base/error.h"
#include "common/base/parallel.h"
#include "common/lab/cli.h"
#include "common/lab/csv.h"
#include "common/lab/gnuplot.h"
#include "common/lab/interrupt.h"
#include "common/lab/progress_line.h"
#include "common/loader/output_file.h"
#include "day10_sparse/scaling_report.h"
#include "day10_sparse/sparse_options.h"

namespace kvlab {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kName[] = "day10_scaling";

/// What all commands share.
struct Common {
  int threads = 1;
  std::string isa;
  bool json = false;
  std::string csv;

  Isa Which() const { return isa.empty() ? BestIsa() : ParseIsa(isa); }
};

void DeclareCommon(CLI::App& app, Common& o, bool csv) {
  DeclareMachineOptions(app, o.threads, o.isa);
  app.add_flag("--json", o.json, "Report as one JSON object");
  if (!csv) return;
  app.add_option("--csv", o.csv, "Write every number as a table")
      ->transform(OutputName())
      ->type_name("FILE");
}

CLI::Option* AddNumber(CLI::App& app, const char* name, int& value,
                       std::uint64_t least, std::uint64_t most,
                       const char* what) {
  return app.add_option(name, value, what)
      ->transform(WholeNumber(least, most))
      ->capture_default_str()
      ->type_name("N");
}

/// Refuses a list that is too long or has a number twice.
void RequireFewAndDistinct(const char* option, std::vector<int> values) {
  constexpr std::size_t kMost = 64;
  if (values.size() > kMost) {
    FailUsage(option, ": expected at most ", kMost, " numbers, found ",
              values.size());
  }
  std::ranges::sort(values);
  const auto twice = std::ranges::adjacent_find(values);
  if (twice != values.end()) {
    FailUsage(option, ": ", *twice, " stands in the list twice");
  }
}

void AddNumbers(CLI::App& app, const char* name, std::vector<int>& values,
                std::uint64_t most, const char* what) {
  app.add_option(name, values, what)
      ->transform(WholeNumber(1, most))
      ->delimiter(',')
      ->type_size(1)
      ->allow_extra_args(false)
      ->capture_default_str()
      ->type_name("N,...");
}

Json Head(const char* command, const Common& o) {
  return {{"program", kName},
          {"version", Version()},
          {"command", command},
          {"isa", IsaName(o.Which())},
          {"threads", o.threads}};
}

void PrintJson(const Json& json) {
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

/// Refuses now what could not be written later.
void ProbeFiles(const std::vector<FileOption>& files) {
  RequireDistinctFiles(files);
  for (const FileOption& option : files) {
    if (!option.file.empty()) const OutputFile probe(option.file);
  }
}

void WriteFile(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  OutputFile file(path);
  file.Write(text);
  file.Commit();
}

// --- curve -------------------------------------------------------------------

ProgramBody Curve(CLI::App& app) {
  struct Options {
    Common common;
    ScalingOptions scaling;
    std::vector<int> contexts = {512, 1024, 2048, 4096, 8192, 32768, 131072};
    bool hot = false;
    bool in_place = false;
    std::string svg;
  };
  const auto o = std::make_shared<Options>();
  DeclareCommon(app, o->common, true);
  app.add_option("--svg", o->svg, "Draw the curves (needs gnuplot)")
      ->transform(OutputName())
      ->type_name("FILE");
  AddNumbers(app, "--contexts", o->contexts, 4'000'000, "Tokens in the cache");
  AddNumber(app, "--heads", o->scaling.heads, 1, 1024, "Query heads");
  AddNumber(app, "--kv-heads", o->scaling.kv_heads, 1, 1024, "KV heads");
  AddNumber(app, "--head-dim", o->scaling.head_dim, 1, 1024,
            "Elements of a row");
  AddNumber(app, "--rounds", o->scaling.rounds, 1, 1000,
            "Times that each is measured; the median is shown");
  AddNumber(app, "--sparse-k", o->scaling.sparse.k, 1, 1'000'000,
            "Blocks to attend over");
  DeclareBlockOptions(app, o->scaling.sparse);
  DeclareDenseBelow(app, o->scaling.sparse);
  app.add_flag("--hot", o->hot, "The same cache again and again");
  app.add_flag("--in-place", o->in_place,
               "Probe the keys where they stand, without the packed copy");
  return [o] {
    const InterruptGuard interrupt_guard;
    const Isa isa = o->common.Which();
    ProbeFiles({{"--csv", o->common.csv}, {"--svg", o->svg}});
    if (!o->svg.empty() && !HaveGnuplot()) Fail("--svg: ", kNoGnuplot);
    if (o->scaling.heads % o->scaling.kv_heads != 0) {
      FailUsage("--heads ", o->scaling.heads,
                ": expected a multiple of "
                "--kv-heads ",
                o->scaling.kv_heads);
    }
    RequireFewAndDistinct("--contexts", o->contexts);
    std::ranges::sort(o->contexts);
    o->scaling.cold = !o->hot;
    o->scaling.pack_probes = !o->in_place;
    ThreadPool pool(o->common.threads);
    ProgressLine progress;
    std::vector<ScalingPoint> points;
    for (std::size_t i = 0; i < o->contexts.size(); ++i) {
      progress.Show(double(i) / static_cast<double>(o->contexts.size()));
      points.push_back(MeasureScaling(o->scaling, o->contexts[i],
                                      PrimitivesFor(isa), pool,
                                      CheckInterrupted));
    }
    progress.Clear();
    const std::string what = StrCat(
        o->scaling.heads, " query heads, ", o->scaling.kv_heads,
        " KV heads, head_dim ", o->scaling.head_dim,
        ", k = ", o->scaling.sparse.k, ", ", IsaName(isa), ", ",
        o->common.threads, o->common.threads == 1 ? " thread, " : " threads, ",
        o->hot ? "hot" : "cold");
    if (o->common.json) {
      Json json = Head("curve", o->common);
      json["shape"] = {{"heads", o->scaling.heads},
                       {"kv_heads", o->scaling.kv_heads},
                       {"head_dim", o->scaling.head_dim},
                       {"cold", o->scaling.cold},
                       {"packed_probes", o->scaling.pack_probes}};
      json["sparse"] = {{"k", o->scaling.sparse.k},
                        {"block_size", o->scaling.sparse.block_tokens},
                        {"n_probe", o->scaling.sparse.n_probe},
                        {"dense_below", o->scaling.sparse.dense_below}};
      json["rounds"] = o->scaling.rounds;
      const double crossover = Crossover(points);
      json["crossover_tokens"] = crossover > 0 ? Json(crossover) : Json();
      json["results"] = ScalingRows(points);
      PrintJson(json);
    } else {
      PrintLine("measured", what);
      std::cout << '\n' << ScalingText(points);
    }
    FinishStdout();  // a run that cannot report must not replace a file
    // Neither is put in place before both are written.
    std::optional<OutputFile> csv, svg;
    if (!o->common.csv.empty()) {
      csv.emplace(o->common.csv).Write(CsvText(ScalingRows(points)));
    }
    if (!o->svg.empty()) {
      svg.emplace(o->svg).Write(DrawSvg(ScalingPlotScript(points, what)));
    }
    if (csv) csv->Commit();
    if (svg) svg->Commit();
    return kExitDone;
  };
}

// --- quality -----------------------------------------------------------------

ProgramBody Quality(CLI::App& app) {
  struct Options {
    Common common;
    PromptOptions prompt;
    QualitySettings quality;
    std::string kv = "q8";
  };
  const auto o = std::make_shared<Options>();
  o->common.threads = PhysicalCores();
  DeclarePromptOptions(app, o->prompt);
  DeclareCommon(app, o->common, true);
  AddNumbers(app, "--ks", o->quality.ks, 1'000'000, "Blocks to attend over");
  DeclareBlockOptions(app, o->quality.sparse);
  app.add_option("--kv", o->kv, "How keys and values are stored: f32 or q8")
      ->check(CLI::IsMember({"f32", "q8"}))
      ->capture_default_str()
      ->type_name("FORMAT");
  return [o] {
    const InterruptGuard interrupt_guard;
    const Isa isa = o->common.Which();
    RequireFewAndDistinct("--ks", o->quality.ks);
    RequireDistinctFiles({{"--csv", o->common.csv}},
                         {{"--prompt-file", o->prompt.file}});
    ProbeFiles({{"--csv", o->common.csv}});
    const Model model = LoadModel(o->prompt.model);
    const Prompt prompt = BuildPrompt(model, o->prompt);
    CheckLength(model, prompt, 0);
    ProgressLine progress;
    o->quality.kv = o->kv == "q8" ? KvFormat::kQ8 : KvFormat::kF32;
    o->quality.threads = o->common.threads;
    o->quality.progress = [&](double done) {
      CheckInterrupted();
      progress.Show(done);
    };
    const std::vector<QualityRow> rows =
        MeasureQuality(model, prompt.tokens, PrimitivesFor(isa), o->quality);
    progress.Clear();
    const int heads = model.config.heads;
    if (o->common.json) {
      Json json = Head("quality", o->common);
      json["model"] = ModelName(model);
      json["tokens"] = {{"prompt", prompt.tokens.size()}};
      json["kv"] = {{"format", o->kv}};
      json["results"] = QualityRows(rows, heads);
      PrintJson(json);
    } else {
      PrintLine("model", ModelSummary(model));
      PrintLine("text", StrCat("the prompt, ", prompt.tokens.size(),
                               " tokens; every query chooses by probe and "
                               "recency"));
      std::cout << '\n' << QualityText(rows, heads);
    }
    FinishStdout();
    WriteFile(o->common.csv, CsvText(QualityRows(rows, heads)));
    return kExitDone;
  };
}

// --- The pits ----------------------------------------------------------------

ProgramBody RunPit(CLI::App& app, const Pit& pit) {
  struct Options {
    Common common;
    PromptOptions prompt;
    int rounds = 9;
  };
  const auto o = std::make_shared<Options>();
  if (pit.needs_model) {
    DeclarePromptOptions(app, o->prompt);
    // They need the needle.
    for (const char* option : {"--prompt", "--prompt-file"}) {
      app.remove_option(app.get_option(option));
    }
    if (pit.run == Straddle) app.remove_option(app.get_option("--depth"));
    o->common.threads = PhysicalCores();
  } else {
    AddNumber(app, "--rounds", o->rounds, 1, 1000,
              "Times that each is measured; the median is shown");
  }
  DeclareCommon(app, o->common, false);
  return [o, pit] {
    const InterruptGuard interrupt_guard;
    ProgressLine progress;
    PitSettings settings{.primitives = PrimitivesFor(o->common.Which()),
                         .prompt = o->prompt,
                         .threads = o->common.threads,
                         .rounds = o->rounds,
                         .check = CheckInterrupted,
                         .progress = [&](double done) {
                           CheckInterrupted();
                           progress.Show(done);
                         }};
    std::optional<Model> model;
    if (pit.needs_model)
      settings.model = &model.emplace(LoadModel(o->prompt.model));
    const PitReport report = pit.run(settings);
    progress.Clear();
    if (o->common.json) {
      Json json = Head(std::string(pit.name).c_str(), o->common);
      json["title"] = report.title;
      json["columns"] = report.rows.front();
      json["rows"] = Json::array();
      for (std::size_t i = 1; i < report.rows.size(); ++i) {
        json["rows"].push_back(report.rows[i]);
      }
      json["explanation"] = report.sentence;
      PrintJson(json);
    } else {
      std::cout << PitText(report);
    }
    return kExitDone;
  };
}

ProgramBody Setup(CLI::App& app) {
  // Each command declares its options and gives its work; the one that was
  // named is done.
  const auto bodies =
      std::make_shared<std::vector<std::pair<CLI::App*, ProgramBody>>>();
  app.require_subcommand(0, 1);
  const auto add = [&](std::string_view name, std::string_view about,
                       const char* group, const auto& declare) {
    CLI::App* command =
        app.add_subcommand(std::string(name), std::string(about));
    command->group(group);
    bodies->emplace_back(command, declare(*command));
  };
  add("curve", "Time against the length of the context, exact and sparse",
      "Lesson 10-1", Curve);
  add("quality", "What choosing costs in attention and probabilities, by k",
      "Lesson 10-3", Quality);
  for (const Pit& pit : AllPits()) {
    add(pit.name, pit.about, "Where sparse attention loses (lesson 10-3)",
        [&](CLI::App& command) { return RunPit(command, pit); });
  }
  return [bodies] {
    for (const auto& [command, body] : *bodies) {
      if (command->parsed()) return body();
    }
    FailUsage("expected a command, such as curve or quality; --help lists all");
  };
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  return kvlab::RunProgram(
      argc, argv, kvlab::kName,
      "What sparse attention gains as the context grows, and where it loses.",
      kvlab::Setup);
}
