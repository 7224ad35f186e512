#include "day10_sparse/block_masses.h"

#include <algorithm>

#include "day10_sparse/block_selection.h"

namespace kvlab {

std::vector<double> BlockMasses(TileReader& reader,
                                const Primitives& primitives, int head,
                                int tokens, int block_tokens) {
  std::vector<float> scores(static_cast<std::size_t>(tokens));
  for (int t = 0; t < tokens; t += kTileTokens) {
    float* const tile = &scores[t];
    reader.Scores(t, std::min(kTileTokens, tokens - t), head, {&tile, 1});
  }
  primitives.exp_and_sum(scores.data(), tokens,
                         primitives.max(scores.data(), tokens));
  std::vector<double> masses(
      static_cast<std::size_t>(BlockCount(tokens, block_tokens)), 0.0);
  double total = 0;
  for (int t = 0; t < tokens; ++t) {
    masses[t / block_tokens] += scores[t];
    total += scores[t];
  }
  for (double& mass : masses) mass /= total;
  return masses;
}

}  // namespace kvlab
