/// \file
/// Counting over the units of a grid.
#pragma once

#include <functional>

#include "day10_sparse/needle_grid_report.h"

namespace kvlab {

/// Some of a grid's prompts under one arm and k, or under exact attention.
struct GridCell {
  int units = 0;
  int found = 0;
  int same = 0;

  double recall() const { return units == 0 ? 0 : double(found) / units; }
};

using UnitFilter = std::function<bool(const UnitId&)>;

/// Number `arm` of the settings' arms with number `k` of their ks.
inline GridCell SparseCell(const GridResults& results, std::size_t arm,
                           std::size_t k, const UnitFilter& counts) {
  GridCell cell;
  for (const GridUnit& unit : results.units) {
    if (!counts(unit.id)) continue;
    const GridUnit::Answer& answer =
        unit.sparse[arm * results.settings.ks.size() + k];
    ++cell.units;
    cell.found += answer.found;
    cell.same += answer.same;
  }
  return cell;
}

inline GridCell ExactCell(const GridResults& results,
                          const UnitFilter& counts) {
  GridCell cell;
  for (const GridUnit& unit : results.units) {
    if (!counts(unit.id)) continue;
    ++cell.units;
    cell.found += unit.exact;
  }
  cell.same = cell.units;
  return cell;
}

}  // namespace kvlab
