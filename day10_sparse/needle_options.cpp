#include "day10_sparse/needle_options.h"

#include <algorithm>
#include <cstdint>

#include "common/base/error.h"
#include "common/lab/cli.h"
#include "day10_sparse/sparse_options.h"

namespace kvlab {
namespace {

constexpr std::size_t kMaxValues = 64;  // of a list

/// The parts of `text` between commas; at least one.
std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts = {""};
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// Declares an option whose value is a list with commas, each part of which is
/// `one`. A list of CLI11's own would take the words after it too, and would
/// drop an empty part without a word.
template <typename T>
CLI::Option* AddList(CLI::App& app, const char* name, std::vector<T>& values,
                     const CLI::Validator& one, const char* type,
                     const char* what) {
  const auto check = [one](std::string& text) -> std::string {
    std::vector<std::string> parts = Split(text);
    if (parts.size() > kMaxValues) {
      return StrCat("expected at most ", kMaxValues, " values, found ",
                    parts.size());
    }
    std::string checked;
    for (std::string& part : parts) {
      if (part.empty()) {
        return StrCat(
            "expected values with single commas between them, found "
            "\"",
            Printable(text), '"');
      }
      const std::string problem = one(part);
      if (!problem.empty()) return problem;
      checked += (checked.empty() ? "" : ",") + part;
    }
    text = checked;
    return "";
  };
  const auto keep = [&values](const std::string& text) {
    values.clear();
    for (const std::string& part : Split(text)) {
      CLI::detail::lexical_cast(part, values.emplace_back());
    }
  };
  return app.add_option_function<std::string>(name, keep, what)
      ->transform(CLI::Validator(check, ""))
      ->type_name(type);
}

void DeclareGrid(CLI::App& app, NeedleLab& o) {
  CLI::Option* grid = app.add_flag(
      "--grid", o.run_grid,
      "Ask for many needles: recall by context, depth, k and what fills the "
      "places");
  for (const char* one :
       {"--context", "--depth", "--prompt", "--prompt-file"}) {
    grid->excludes(app.get_option(one));
  }
  const auto needs_grid = [&](CLI::Option* option) {
    option->group("Grid")->needs(grid);
  };
  grid->group("Grid");
  needs_grid(app.add_flag("--quick", o.quick,
                          "A smaller grid where nothing else is asked for: 3 "
                          "contexts, 3 depths, 4 seeds"));
  needs_grid(AddList(app, "--contexts", o.grid.contexts,
                     WholeNumber(1, 100'000'000), "N,...",
                     "Contexts (default 512,1024,2048,4096)"));
  needs_grid(AddList(app, "--depths", o.grid.depths, Share(), "X,...",
                     "Depths (default 0,0.25,0.5,0.75,1)"));
  needs_grid(app.add_option("--seeds", o.grid.seeds,
                            "Prompts of each context and depth, from --seed "
                            "on (default 20)")
                 ->transform(WholeNumber(1, 100'000))
                 ->type_name("N"));
  std::vector<std::string> names;
  for (const BlockArm arm : kBlockArms) names.emplace_back(BlockArmName(arm));
  needs_grid(AddList(app, "--arms", o.arms, CLI::IsMember(names), "ARM,...",
                     "What fills the places (default: all of article, oracle, "
                     "probe, importance, recency, random)"));
  const auto file = [&](const char* name, std::string& value,
                        const char* what) {
    needs_grid(app.add_option(name, value, what)
                   ->transform(OutputName())
                   ->type_name("FILE"));
  };
  file("--journal", o.journal,
       "Keep what is done here; the same command goes on where it stopped");
  file("--svg", o.svg,
       "Draw recall by context and depth, the article's way (needs gnuplot)");
  file("--svg-arms", o.svg_arms, "Draw recall by k and arm (needs gnuplot)");
}

/// Refuses a list with the same number twice.
template <typename T>
void RequireDistinct(const char* option, std::vector<T> values) {
  std::ranges::sort(values);
  const auto twice = std::ranges::adjacent_find(values);
  if (twice != values.end()) {
    FailUsage(option, ": ", *twice, " stands in the list twice");
  }
}

}  // namespace

void DeclareNeedleOptions(CLI::App& app, NeedleLab& o) {
  TableSettings& t = o.table;
  DeclarePromptOptions(app, t.prompt);
  t.threads = PhysicalCores();
  const auto number = [&](const char* name, int& value, std::uint64_t least,
                          std::uint64_t most, const char* what) {
    return app.add_option(name, value, what)
        ->transform(WholeNumber(least, most))
        ->type_name("N");
  };
  number("--max-tokens", t.max_tokens, 1, 10'000'000, "Most tokens to generate")
      ->capture_default_str();
  DeclareMachineOptions(app, t.threads, o.isa);
  app.add_option("--kv", o.kv,
                 "How keys and values are stored: f32, q8 or both (a grid: q8 "
                 "if not told)")
      ->check(CLI::IsMember({"f32", "q8", "both"}))
      ->capture_default_str()
      ->type_name("FORMAT");
  AddList(app, "--ks,--k", o.ks, WholeNumber(1, 1'000'000), "N,...",
          "Blocks to attend over (default 64,32,16,8,4,2,1; a grid: "
          "1,2,4,8,16,32)");
  DeclareBlockOptions(app, t.sparse);
  DeclareImportance(app, t.importance);
  CLI::Option* dense = DeclareDenseBelow(app, t.sparse);
  app.add_flag("--json", o.json, "Report as one JSON object");
  app.add_option("--csv", o.csv, "Write every row as a table")
      ->transform(OutputName())
      ->type_name("FILE");
  DeclareGrid(app, o);
  app.get_option("--grid")->excludes(dense);
}

void SettleNeedleOptions(const CLI::App& app, NeedleLab& o) {
  TableSettings& t = o.table;
  GridSettings& g = o.grid;
  t.sparse.importance = ParseImportance(t.importance);
  const bool own_needle = app.count("--needle") > 0;
  RequireDistinct("--ks", o.ks);
  if (!o.ks.empty()) {
    t.ks = o.ks;
    t.own_ks = true;
  }
  if (o.kv != "both") {
    t.formats = {o.kv == "f32" ? KvFormat::kF32 : KvFormat::kQ8};
  }
  if (!o.run_grid) return;
  if (o.kv == "both" && app.count("--kv") > 0) {
    FailUsage("--kv both: a grid takes one format; ask for f32 or q8");
  }
  if (!t.prompt.needle.question.empty() && !own_needle) {
    FailUsage("--question needs --needle: a grid draws needles of its own");
  }
  if (o.quick) {
    if (app.count("--contexts") == 0) g.contexts = {512, 1024, 2048};
    if (app.count("--depths") == 0) g.depths = {0, 0.5, 1};
    if (app.count("--seeds") == 0) g.seeds = 4;
  }
  if (!o.ks.empty()) g.ks = o.ks;
  if (!o.arms.empty()) {
    RequireDistinct("--arms", o.arms);
    g.arms.clear();
    for (const BlockArm arm : kBlockArms) {
      if (std::ranges::count(o.arms, BlockArmName(arm)) > 0)
        g.arms.push_back(arm);
    }
  } else if (t.importance == "off") {
    std::erase(g.arms, BlockArm::kImportance);
  }
  if (g.units() > kMaxGridUnits) {
    FailUsage("--contexts, --depths and --seeds: expected at most ",
              kMaxGridUnits, " prompts together, found ", g.contexts.size(),
              " x ", g.depths.size(), " x ", g.seeds, " = ", g.units(),
              "; ask for fewer");
  }
  const std::uint64_t more_seeds = static_cast<std::uint64_t>(g.seeds) - 1;
  if (t.prompt.needle.seed > UINT64_MAX - more_seeds) {
    FailUsage("--seed ", t.prompt.needle.seed, " and --seeds ", g.seeds,
              ": the last seed would be beyond ", UINT64_MAX,
              "; begin with a smaller one");
  }
  RequireDistinct("--contexts", g.contexts);
  RequireDistinct("--depths", g.depths);
  std::ranges::sort(g.contexts);
  std::ranges::sort(g.depths);
  std::ranges::sort(g.ks);
  const auto has = [&](BlockArm arm) {
    return std::ranges::count(g.arms, arm) > 0;
  };
  if (has(BlockArm::kImportance) && t.importance == "off") {
    FailUsage("--arms importance: there is none with --importance off");
  }
  if (!o.svg.empty() && !has(BlockArm::kArticle)) {
    FailUsage("--svg draws the article's way; add it to --arms");
  }
  g.kv = o.kv == "f32" ? KvFormat::kF32 : KvFormat::kQ8;
  g.prompt = t.prompt;
  g.own_needle = own_needle;
  g.sparse = t.sparse;
  g.importance = t.importance;
  g.max_tokens = t.max_tokens;
}

}  // namespace kvlab
