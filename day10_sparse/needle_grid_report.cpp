#include "day10_sparse/needle_grid_report.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/lab/text_table.h"
#include "day10_sparse/needle_grid_cells.h"

namespace kvlab {
namespace {

using Json = nlohmann::ordered_json;

/// Whole percent; in parentheses where all blocks were read.
std::string Percent(const GridCell& cell, bool ran_exact) {
  const std::string percent = Fixed(100 * cell.recall(), 0);
  return ran_exact ? StrCat('(', percent, ')') : percent;
}

std::vector<std::string> HeaderOf(std::vector<std::string> cells,
                                  const GridSettings& settings) {
  for (const int k : settings.ks) cells.push_back(StrCat("k=", k));
  cells.push_back("exact");
  return cells;
}

/// One arm's recall at every k, then exact attention's.
void AddRecalls(std::vector<std::string>& cells, const GridResults& results,
                std::size_t arm, int context, const UnitFilter& counts) {
  const GridSettings& s = results.settings;
  for (std::size_t k = 0; k < s.ks.size(); ++k) {
    cells.push_back(Percent(SparseCell(results, arm, k, counts),
                            RanExact(s, context, s.ks[k])));
  }
  cells.push_back(Percent(ExactCell(results, counts), false));
}

std::string ArmTable(const GridResults& results) {
  const GridSettings& s = results.settings;
  TextTable table("rrl" + std::string(s.ks.size() + 1, 'r'));
  table.Add(HeaderOf({"context", "blocks", "places go to"}, s));
  for (const int context : s.contexts) {
    const auto counts = [&](const UnitId& id) { return id.context == context; };
    for (std::size_t arm = 0; arm < s.arms.size(); ++arm) {
      std::vector<std::string> cells = {"", "",
                                        std::string(BlockArmName(s.arms[arm]))};
      if (arm == 0) {
        cells[0] = StrCat(context);
        cells[1] = StrCat(BlockCount(context, s.sparse.block_tokens));
      }
      AddRecalls(cells, results, arm, context, counts);
      table.Add(std::move(cells));
    }
  }
  return table.Text();
}

std::string DepthTable(const GridResults& results, std::size_t arm) {
  const GridSettings& s = results.settings;
  TextTable table("rr" + std::string(s.ks.size() + 1, 'r'));
  table.Add(HeaderOf({"context", "depth"}, s));
  for (const int context : s.contexts) {
    for (const double depth : s.depths) {
      std::vector<std::string> cells = {StrCat(context), StrCat(depth)};
      AddRecalls(cells, results, arm, context, [&](const UnitId& id) {
        return id.context == context && id.depth == depth;
      });
      table.Add(std::move(cells));
    }
  }
  return table.Text();
}

/// A sparse arm that finds more than exact attention is a fault of the
/// experiment until it is explained: one line for each, with a prompt to look
/// at.
std::string Suspicions(const GridResults& results) {
  const GridSettings& s = results.settings;
  const auto all = [](const UnitId&) { return true; };
  const int exact = ExactCell(results, all).found;
  std::string text;
  for (std::size_t arm = 0; arm < s.arms.size(); ++arm) {
    for (std::size_t k = 0; k < s.ks.size(); ++k) {
      const int found = SparseCell(results, arm, k, all).found;
      if (found <= exact) continue;
      const auto better =
          std::ranges::find_if(results.units, [&](const GridUnit& unit) {
            return !unit.exact && unit.sparse[arm * s.ks.size() + k].found;
          });
      text += StrCat(
          "SUSPICIOUS: ", BlockArmName(s.arms[arm]), " with k = ", s.ks[k],
          " finds ", found, ", exact attention ", exact, "; look at --context ",
          better->id.context, " --depth ", better->id.depth, " --seed ",
          better->id.seed, " --needle \"", Printable(better->needle), "\"\n");
    }
  }
  return text.empty() ? "No arm finds more than exact attention.\n" : text;
}

}  // namespace

Json GridRows(const GridResults& results) {
  const GridSettings& s = results.settings;
  Json rows = Json::array();
  for (const int context : s.contexts) {
    for (const double depth : s.depths) {
      const auto counts = [&](const UnitId& id) {
        return id.context == context && id.depth == depth;
      };
      const auto add = [&](std::string_view arm, Json k, const GridCell& cell,
                           bool ran_exact) {
        rows.push_back({{"context", context},
                        {"depth", depth},
                        {"arm", arm},
                        {"k", std::move(k)},
                        {"prompts", cell.units},
                        {"found", cell.found},
                        {"recall", cell.recall()},
                        {"same_as_exact", cell.same},
                        {"ran_exact", ran_exact}});
      };
      add("exact", nullptr, ExactCell(results, counts), true);
      for (std::size_t arm = 0; arm < s.arms.size(); ++arm) {
        for (std::size_t k = 0; k < s.ks.size(); ++k) {
          add(BlockArmName(s.arms[arm]), s.ks[k],
              SparseCell(results, arm, k, counts),
              RanExact(s, context, s.ks[k]));
        }
      }
    }
  }
  return rows;
}

std::string GridText(const GridResults& results) {
  const GridSettings& s = results.settings;
  std::string text = StrCat(
      "Recall in %: the answers that hold the value, of ",
      s.depths.size() * static_cast<std::size_t>(s.seeds),
      " prompts a line (depths: ", s.depths.size(), ", seeds: ", s.seeds,
      ").\n(100): k blocks are all there are, so exact attention ran.\n\n",
      ArmTable(results));
  const auto article = std::ranges::find(s.arms, BlockArm::kArticle);
  if (article != s.arms.end()) {
    text += StrCat(
        "\nThe article's way by depth of the needle (0 first, 1 "
        "last); prompts a line: ",
        s.seeds, "\n\n",
        DepthTable(results,
                   static_cast<std::size_t>(article - s.arms.begin())));
  }
  return StrCat(text, '\n', Suspicions(results));
}

}  // namespace kvlab
