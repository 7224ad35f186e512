/// \file
/// A grid as tables, rows for JSON and CSV, and pictures.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "day10_sparse/needle_grid.h"

namespace kvlab {

/// A grid and all its units, in any order.
struct GridResults {
  const GridSettings& settings;
  std::vector<GridUnit> units;
};

/// A row for exact attention and for each arm and k, in each context and depth:
/// recall (the share of prompts whose answer holds the value) and the share of
/// answers that are those of exact attention, token for token.
nlohmann::ordered_json GridRows(const GridResults& results);

/// Tables of at most 100 columns for the usual numbers of ks, and what is
/// suspicious: an arm that finds more than exact attention.
std::string GridText(const GridResults& results);

/// Scripts for DrawSvg: the article's arm: recall by context and depth, a panel
/// for each k.
std::string GridHeatmapScript(const GridResults& results,
                              const std::string& subtitle);
/// All arms: recall by k, a panel for each context.
std::string GridArmsScript(const GridResults& results,
                           const std::string& subtitle);

}  // namespace kvlab
