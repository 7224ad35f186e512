#include "day10_sparse/block_selection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/base/error.h"

namespace kvlab {
namespace {

/// What blocks are ordered by. A probe that is no number comes first: attention
/// over its block then refuses the query, as exact attention would.
template <typename T>
T Order(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::infinity() : value;
}

/// Moves the `count` blocks with the largest values to the front of
/// `candidates`, the last of them to place count - 1. Of equals the smaller
/// block is larger: there is only one order, whatever algorithm finds it.
template <typename T>
void LargestFirst(std::vector<int>& candidates, std::span<const T> values,
                  int count) {
  if (count == 0) return;
  std::nth_element(candidates.begin(), candidates.begin() + count - 1,
                   candidates.end(), [&](int a, int b) {
                     const T x = Order(values[a]);
                     const T y = Order(values[b]);
                     return x > y || (x == y && a < b);
                   });
}

/// Ranks of all blocks, 1 for the largest value.
template <typename T>
std::vector<int> Ranks(std::span<const T> values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int a, int b) { return Order(values[a]) > Order(values[b]); });
  std::vector<int> ranks(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    ranks[order[i]] = static_cast<int>(i) + 1;
  }
  return ranks;
}

}  // namespace

std::string_view ReasonName(BlockReason reason) {
  switch (reason) {
    case BlockReason::kImportance:
      return "importance";
    case BlockReason::kProbe:
      return "probe";
    case BlockReason::kRecency:
      return "recency";
    case BlockReason::kLowerProbe:
      return "lower_probe";
    case BlockReason::kEvictedByRecency:
      return "evicted_by_recency";
  }
  return "?";
}

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

  // The last block holds the newest tokens, which no prompt query has seen and
  // which the next token nearly always needs. It takes the place that was given
  // last, never a reserved one: with k = 1 and importance it cannot come in.
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

std::vector<BlockEvent> DescribeSelection(const SelectionInput& input,
                                          const Selection& selection) {
  const std::vector<int> probe_ranks = Ranks(input.probes);
  const std::vector<int> importance_ranks = Ranks(input.importance);
  std::vector<BlockEvent> rows(input.probes.size());
  for (std::size_t b = 0; b < rows.size(); ++b) {
    rows[b].probe = input.probes[b];
    rows[b].probe_rank = probe_ranks[b];
    if (!input.importance.empty()) {
      rows[b].importance = input.importance[b];
      rows[b].importance_rank = importance_ranks[b];
    }
    rows[b].taken = IsTaken(selection.reasons[b]);
    rows[b].reason = ReasonName(selection.reasons[b]);
  }
  return rows;
}

}  // namespace kvlab
