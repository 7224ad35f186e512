#include "day10_sparse/block_probes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "day10_sparse/block_selection.h"

namespace kvlab {

std::vector<std::vector<float>> ProbeBlocks(TileReader& reader, int heads,
                                            int tokens, int block_tokens,
                                            int n_probe) {
  // A few keys of each block: all of them would be exact attention. The largest
  // dot, not the first or the mean: a needle may stand in the middle of a block
  // of other things.
  // [probe]
  const int blocks = BlockCount(tokens, block_tokens);
  std::vector<std::vector<float>> probes(
      static_cast<std::size_t>(heads),
      std::vector<float>(static_cast<std::size_t>(blocks),
                         -std::numeric_limits<float>::infinity()));
  std::vector<float> dots(static_cast<std::size_t>(heads) * kTileTokens);
  std::vector<float*> dots_of;
  for (int g = 0; g < heads; ++g) dots_of.push_back(&dots[g * kTileTokens]);
  const auto probe = [&](const ProbeTokens& some) {
    for (int i = 0; i < some.count(); i += kTileTokens) {
      const int count = std::min(kTileTokens, some.count() - i);
      const int t = some.first + i * some.step;
      reader.Dots(t, count, some.step, 0, dots_of, 1.0f);
      for (int g = 0; g < heads; ++g) {
        for (int j = 0; j < count; ++j) {
          float& largest = probes[g][(t + j * some.step) / block_tokens];
          const float dot = dots_of[g][j];
          if (!std::isnan(largest) && !(dot <= largest)) largest = dot;
        }
      }
    }
  };
  // Where the step divides the block, the samples of all whole blocks are
  // evenly spaced: one run, which the primitives take 32 at a time.
  const ProbeTokens first = ProbesOf(0, tokens, block_tokens, n_probe);
  const int whole = tokens / block_tokens;
  const bool even = whole > 0 && block_tokens % first.step == 0;
  if (even) probe({0, whole * block_tokens, first.step});
  for (int b = even ? whole : 0; b < blocks; ++b) {
    probe(ProbesOf(b, tokens, block_tokens, n_probe));
  }
  // [probe]
  return probes;
}

}  // namespace kvlab
