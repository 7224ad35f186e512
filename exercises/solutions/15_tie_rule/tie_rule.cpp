#include "exercises/15_tie_rule/tie_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvlab {
// [yours]
namespace {

/// What a probe counts in the order.
float Value(const Candidate& c) {
  return std::isnan(c.probe) ? std::numeric_limits<float>::infinity() : c.probe;
}

/// A total order: of two candidates exactly one is better, so no algorithm has
/// a choice left. To > and == the two zeros are one number already.
bool IsBetter(const Candidate& a, const Candidate& b) {
  const float x = Value(a);
  const float y = Value(b);
  return x > y || (x == y && a.block < b.block);
}

}  // namespace

std::vector<int> ChooseBlocks(std::span<const Candidate> arrived, int k) {
  std::vector<Candidate> candidates(arrived.begin(), arrived.end());
  const auto places = std::min<std::ptrdiff_t>(k, std::ssize(candidates));
  std::partial_sort(candidates.begin(), candidates.begin() + places,
                    candidates.end(), IsBetter);
  std::vector<int> blocks;
  for (std::ptrdiff_t i = 0; i < places; ++i) {
    blocks.push_back(candidates[i].block);
  }
  return blocks;
}
// [yours]

}  // namespace kvlab
