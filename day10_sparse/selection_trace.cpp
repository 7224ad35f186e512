/// \file
/// What block_selection.h offers for traces: names and ranks. No choice is made
/// here.
#include <algorithm>
#include <numeric>

#include "day10_sparse/block_selection.h"

namespace kvlab {
namespace {

/// Ranks of all blocks, 1 for the largest value.
template <typename T>
std::vector<int> Ranks(std::span<const T> values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order,
                    [&](int a, int b) { return ComesBefore(values, a, b); });
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
