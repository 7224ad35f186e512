/// \file
/// The options of day10_needle.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "day10_sparse/needle_grid.h"
#include "day10_sparse/needle_table.h"

namespace kvlab {

/// What the command line says.
struct NeedleLab {
  TableSettings table;
  GridSettings grid;
  std::string isa = {};
  std::string kv = "both";
  std::vector<int> ks = {};            ///< empty: not given
  std::vector<std::string> arms = {};  ///< empty: not given
  bool run_grid = false;
  bool quick = false;
  bool json = false;
  std::string csv = {};
  std::string journal = {};
  std::string svg = {};
  std::string svg_arms = {};
};

/// Declares them.
void DeclareNeedleOptions(CLI::App& app, NeedleLab& o);

/// What follows from the options together, once they were read. Throws a usage
/// Error on what does not go together.
void SettleNeedleOptions(const CLI::App& app, NeedleLab& o);

}  // namespace kvlab
