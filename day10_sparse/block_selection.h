/// \file
/// Which blocks to read (lesson 10-2): of a cache in blocks of 16, 32 or 64
/// tokens, the k that one query should attend over.
///
///     probe      a few keys of every block, the largest dot of each block
///     reserve    (k + 1) / 2 places for the blocks that the prompt found
///                important
///     fill       the other places for the largest probes
///     recency    the last block, if it is not there, takes the place of the
///                block that came in last by its probe
///
/// No step draws a random number, and a tie goes to the smaller block: the same
/// query over the same cache chooses the same blocks, bit for bit.
///
/// Source: sparse_topk of the article, lesson 10-2.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "common/attention/observer.h"

namespace kvlab {

/// Why a block was taken or dropped.
enum class BlockReason {
  kImportance,        ///< taken: reserved for it by its importance
  kProbe,             ///< taken: one of the largest probes of the rest
  kRecency,           ///< taken: the last block
  kLowerProbe,        ///< dropped: others had larger probes
  kEvictedByRecency,  ///< dropped: its place by probe went to the last block
};

/// "importance", "probe", "recency", "lower_probe", "evicted_by_recency".
std::string_view ReasonName(BlockReason reason);

/// True for the first three.
bool IsTaken(BlockReason reason);

/// Blocks of `block_tokens` tokens that hold `tokens` >= 1 tokens; the last may
/// be shorter.
int BlockCount(int tokens, int block_tokens);

/// Tokens of a block that are probed: first, first + step, ... < last. The step
/// is (last - first) / n_probe rounded down, at least 1, so a length that
/// n_probe does not divide is sampled more often, and what lies between two
/// samples is not seen.
struct ProbeTokens {
  int first;
  int last;
  int step;

  /// How many there are.
  int count() const { return (last - first + step - 1) / step; }
};

/// The probed tokens of block `block`. n_probe < 1 counts as 1.
ProbeTokens ProbesOf(int block, int tokens, int block_tokens, int n_probe);

/// The importance of each block, [BlockCount(tokens, block_tokens)]: the sum
/// over its tokens in ascending order. `importance` has a number for each
/// prompt token; tokens decoded later count 0.
std::vector<double> BlockImportance(std::span<const double> importance,
                                    int tokens, int block_tokens);

/// The one order of blocks: larger values first, and of equals (-0 equals +0)
/// the smaller block. A value that is no number comes first: attention over its
/// block then refuses the query, as exact attention would.
template <typename T>
bool ComesBefore(std::span<const T> values, int a, int b) {
  const auto order = [](T value) {
    return std::isnan(value) ? std::numeric_limits<T>::infinity() : value;
  };
  const T x = order(values[a]);
  const T y = order(values[b]);
  return x > y || (x == y && a < b);
}

/// What a selector knows of one query.
struct SelectionInput {
  int k = 0;                                ///< places, >= 1
  std::span<const float> probes = {};       ///< [blocks] largest sampled dot
  std::span<const double> importance = {};  ///< [blocks]; empty: no record
  /// [blocks] share of exact attention that each block would get; only for a
  /// selector that needs_masses, since to know it is to compute all of it.
  std::span<const double> masses = {};
  HeadId id = {};  ///< whose query it is
};

/// What it chose.
struct Selection {
  std::vector<int> blocks;           ///< taken, ascending, at most k
  std::vector<BlockReason> reasons;  ///< [blocks of the cache]
};

/// A way to choose. Exercises bring their own; it must choose the same blocks
/// for the same input, at most k of them and at least one.
class BlockSelector {
 public:
  virtual ~BlockSelector() = default;
  /// True to be given SelectionInput::masses.
  virtual bool needs_masses() const { return false; }
  /// Called concurrently for heads that do not share a KV head.
  virtual Selection Select(const SelectionInput& input) const = 0;
};

/// The article's way: reserve, fill, recency.
class TopKSelector final : public BlockSelector {
 public:
  Selection Select(const SelectionInput& input) const override;
};

/// Every block with its ranks and what became of it: for traces.
std::vector<BlockEvent> DescribeSelection(const SelectionInput& input,
                                          const Selection& selection);

}  // namespace kvlab
