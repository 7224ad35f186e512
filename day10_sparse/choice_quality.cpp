#include "day10_sparse/choice_quality.h"

#include <functional>
#include <numeric>

namespace kvlab {

double LargestMasses(std::span<const double> masses, int count) {
  std::vector<double> sorted(masses.begin(), masses.end());
  std::partial_sort(sorted.begin(), sorted.begin() + count, sorted.end(),
                    std::greater<>());
  return std::accumulate(sorted.begin(), sorted.begin() + count, 0.0);
}

Selection QualityWatch::Select(const SelectionInput& input) const {
  Selection selection = selector_->Select(input);
  double recall = 0;
  for (const int block : selection.blocks) recall += input.masses[block];
  record_[input.id.layer * heads_ + input.id.head].Add(
      recall,
      LargestMasses(input.masses, static_cast<int>(selection.blocks.size())));
  return selection;
}

}  // namespace kvlab
