#include "day10_sparse/block_selection.h"

#include <algorithm>
#include <numeric>

#include "common/base/error.h"

namespace kvlab {
namespace {

/// Sorts the `count` blocks with the largest values to the front of
/// `candidates`. For a few of many: most blocks are compared once, with the
/// least of those that lead.
template <typename T>
void LargestFirst(std::vector<int>& candidates, std::span<const T> values,
                  int count) {
  std::partial_sort(candidates.begin(), candidates.begin() + count,
                    candidates.end(),
                    [&](int a, int b) { return ComesBefore(values, a, b); });
}

}  // namespace

bool IsTaken(BlockReason reason) {
  return reason == BlockReason::kImportance || reason == BlockReason::kProbe ||
         reason == BlockReason::kRecency;
}

int BlockCount(int tokens, int block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

ProbeTokens ProbesOf(int block, int tokens, int block_tokens, int n_probe) {
  const int first = block * block_tokens;
  const int last = std::min(first + block_tokens, tokens);
  return {first, last, std::max(1, (last - first) / std::max(1, n_probe))};
}

std::vector<double> BlockImportance(std::span<const double> importance,
                                    int tokens, int block_tokens) {
  std::vector<double> sums(
      static_cast<std::size_t>(BlockCount(tokens, block_tokens)), 0.0);
  const int known = std::min(tokens, static_cast<int>(importance.size()));
  for (int t = 0; t < known; ++t) sums[t / block_tokens] += importance[t];
  return sums;
}

Selection TopKSelector::Select(const SelectionInput& input) const {
  KVLAB_CHECK_GE(input.k, 1);
  const auto blocks = static_cast<int>(input.probes.size());
  KVLAB_CHECK_GE(blocks, 1);
  const int places = std::min(input.k, blocks);
  std::vector<int> candidates(static_cast<std::size_t>(blocks));
  std::iota(candidates.begin(), candidates.end(), 0);
  Selection selection;
  selection.reasons.assign(candidates.size(), BlockReason::kLowerProbe);

  // Half of the places, rounded up, belong to the blocks that the prompt's own
  // queries looked at most. A probe sees one key in four; this has seen all.
  // [reserve]
  int reserved = 0;
  if (!input.importance.empty()) {
    KVLAB_CHECK_EQ(input.importance.size(), input.probes.size());
    reserved = std::min((input.k + 1) / 2, blocks);
    LargestFirst(candidates, input.importance, reserved);
    for (int i = 0; i < reserved; ++i) {
      selection.reasons[candidates[i]] = BlockReason::kImportance;
    }
    candidates.erase(candidates.begin(), candidates.begin() + reserved);
  }
  // [reserve]

  // The rest of the places go to the largest probes among the other blocks:
  // what this query, now, seems to look for.
  // [fill]
  const int filled = places - reserved;
  LargestFirst(candidates, input.probes, filled);
  for (int i = 0; i < filled; ++i) {
    selection.reasons[candidates[i]] = BlockReason::kProbe;
  }
  // [fill]

  // The last block holds the newest tokens, which no prompt query has seen
  // whole and which the next token nearly always needs. It takes the place that
  // was given last, never a reserved one: with k = 1 and importance it cannot
  // come in.
  // [recency]
  BlockReason& newest = selection.reasons[blocks - 1];
  if (!IsTaken(newest) && filled > 0) {
    selection.reasons[candidates[filled - 1]] = BlockReason::kEvictedByRecency;
    newest = BlockReason::kRecency;
  }
  // [recency]

  for (int b = 0; b < blocks; ++b) {
    if (IsTaken(selection.reasons[b])) selection.blocks.push_back(b);
  }
  return selection;
}

}  // namespace kvlab
