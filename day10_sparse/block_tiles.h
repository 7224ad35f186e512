/// \file
/// The tokens of chosen blocks, in tiles.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "common/simd/primitives.h"

namespace kvlab {

/// Tokens t to t + count - 1 of the cache, which are number `at` and following
/// among the chosen ones. The next tile begins at token `next`; -1: no more.
struct BlockTile {
  int t;
  int count;
  int at;
  int next;
};

/// The tokens of the blocks (of `block_tokens` tokens, of the first `tokens`)
/// in tiles of at most 32.
inline std::vector<BlockTile> TilesOf(std::span<const int> blocks,
                                      int block_tokens, int tokens) {
  std::vector<BlockTile> tiles;
  int at = 0;
  for (const int block : blocks) {
    const int last = std::min((block + 1) * block_tokens, tokens);
    for (int t = block * block_tokens; t < last; t += kTileTokens) {
      if (!tiles.empty()) tiles.back().next = t;
      tiles.push_back({t, std::min(kTileTokens, last - t), at, -1});
      at += tiles.back().count;
    }
  }
  return tiles;
}

}  // namespace kvlab
