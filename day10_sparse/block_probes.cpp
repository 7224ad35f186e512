#include "day10_sparse/block_probes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "day10_sparse/block_selection.h"

namespace kvlab {
namespace {

/// The larger of two; what is no number stays.
float Larger(float a, float b) { return b <= a || std::isnan(a) ? a : b; }

/// The largest of n dots; NaN if one of them is.
float Largest(const Primitives& primitives, const float* dots, int n) {
  int bad = 0;
  for (int i = 0; i < n; ++i) bad |= static_cast<int>(std::isnan(dots[i]));
  return bad != 0 ? std::numeric_limits<float>::quiet_NaN()
                  : primitives.max(dots, n);
}

}  // namespace

std::vector<std::vector<float>> ProbeBlocks(const Primitives& primitives,
                                            TileReader& reader, int heads,
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
  const auto probe = [&](const ProbeTokens& some, int per_block) {
    for (int i = 0; i < some.count(); i += kTileTokens) {
      const int count = std::min(kTileTokens, some.count() - i);
      const int t = some.first + i * some.step;
      reader.Dots(t, count, some.step, 0, dots_of, 1.0f);
      for (int g = 0; g < heads; ++g) {
        for (int j = 0; j < count; j += per_block) {
          float& probe = probes[g][(t + j * some.step) / block_tokens];
          probe = Larger(probe, Largest(primitives, dots_of[g] + j,
                                        std::min(per_block, count - j)));
        }
      }
    }
  };
  // Where the step divides the block, the samples of all whole blocks are
  // evenly spaced: one run, which the primitives take 32 at a time.
  const ProbeTokens first = ProbesOf(0, tokens, block_tokens, n_probe);
  const int whole = tokens / block_tokens;
  const bool even = whole > 0 && block_tokens % first.step == 0;
  if (even) {
    probe({0, whole * block_tokens, first.step}, block_tokens / first.step);
  }
  for (int b = even ? whole : 0; b < blocks; ++b) {
    const ProbeTokens some = ProbesOf(b, tokens, block_tokens, n_probe);
    probe(some, some.count());
  }
  // [probe]
  return probes;
}

}  // namespace kvlab
