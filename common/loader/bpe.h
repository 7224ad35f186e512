/// \file
/// Byte pair encoding of one word. Private to the loader.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace kvlab {

/// "`left` followed by `right` becomes `merged`"; a lower rank goes first.
struct BpeMerge {
  int left;
  int right;
  int rank;
  int merged;
};

/// The merges of a model. Immutable, so safe to use from several threads.
class Bpe {
 public:
  Bpe() = default;

  /// Ids must be >= 0 and < `id_count`. Of two rules for the same pair the one
  /// given last holds.
  Bpe(std::vector<BpeMerge> merges, int id_count);

  /// Merges the pairs of `word` until none is left and appends the result to
  /// `out`. Always the pair of the lowest rank, then the leftmost. Takes
  /// O(n log n) for n ids: the word is a linked list, the pairs wait in a
  /// priority queue. Returns the number of queue entries handled (for tests of
  /// that growth).
  std::size_t Encode(std::span<const int> word, std::vector<int>& out) const;

 private:
  const BpeMerge* Find(int left, int right) const;

  std::vector<BpeMerge> merges_;     // by left, then right
  std::vector<std::size_t> starts_;  // merges_ of left: [starts_[l], [l + 1])
};

}  // namespace kvlab
