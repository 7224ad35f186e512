/// \file
/// The k best blocks of a list that arrived in any order.
#pragma once

#include <span>
#include <vector>

namespace kvlab {

/// A block and the largest dot that was sampled of it, as one of several
/// threads reported it.
struct Candidate {
  int block;    ///< its number in the cache, >= 0; no two are the same
  float probe;  ///< any float: also -0, an infinity or a NaN
};

/// The min(k, arrived.size()) best blocks, best first; k >= 1.
///
/// One block is better than another if its probe is larger; of two with equal
/// probes, if its number is smaller. -0 and +0 are equal. Every NaN, whatever
/// its sign, counts as +infinity: so it comes first.
///
/// The result depends on which candidates there are, not on their order in
/// `arrived`.
std::vector<int> ChooseBlocks(std::span<const Candidate> arrived, int k);

}  // namespace kvlab
