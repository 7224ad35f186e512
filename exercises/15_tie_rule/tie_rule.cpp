#include "exercises/15_tie_rule/tie_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvlab {
// [yours]
namespace {

bool IsBetter(const Candidate& a, const Candidate& b) {
  return a.probe > b.probe;
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
