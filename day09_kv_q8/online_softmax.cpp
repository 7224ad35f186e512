#include "day09_kv_q8/online_softmax.h"

#include <algorithm>
#include <array>
#include <vector>

#include "common/attention/online_softmax.h"
#include "common/base/error.h"

namespace kvlab {

void OnlineSoftmaxStage::Attend(const AttendInput& input, std::span<float> out,
                                Observer* observer) {
  const KvHeadView& kv = input.kv;
  KVLAB_CHECK(kv.format == KvFormat::kF32);
  KVLAB_CHECK_GE(kv.tokens, 1);
  const int n = kv.tokens;
  const int d = kv.head_dim;
  const float scale = AttentionScale(d);

  // Each query head of the GQA group has its own softmax; all of them use a
  // tile of K and V while it is in the L1 cache.
  struct Head {
    HeadId id;
    const float* q;                            // [d]
    OnlineSoftmax softmax;                     // M, S, acc
    std::array<float, kTileTokens> tile = {};  // its scores, then its weights
  };
  std::vector<Head> heads;
  for (int g = 0; g < input.group; ++g) {
    const HeadId id{input.layer, input.first_head + g, input.position};
    RequireFiniteQuery(input.Query(g), d, id);
    heads.push_back({id, input.Query(g), OnlineSoftmax(kv.stride)});
  }

  // What each head gets from a tile of keys, and from a tile of values.
  std::vector<TileScores> scores;
  std::vector<TileSum> sums;
  for (Head& head : heads) {
    scores.push_back({head.q, head.tile.data()});
    sums.push_back({head.tile.data(), head.softmax.acc.data()});
  }

  for (int t = 0; t < n; t += tile_) {
    const int tokens = std::min(tile_, n - t);
    // The scores of this tile alone.
    // [score]
    primitives_.dot_keys(scores.data(), input.group, kv.Keys(t, tokens), scale);
    // [score]

    // The running softmax: M and S take the tile in, a larger score rescales
    // what was summed before, and the scores become weights.
    for (Head& head : heads) {
      const std::span<float> tile(head.tile.data(), tokens);
      TileWatch watch(observer, head.id, t, tile);
      const OnlineStep step = head.softmax.Weigh(primitives_, tile);
      watch.Show(step, head.softmax);
    }

    // The values of the same tile.
    // [weighted_values]
    primitives_.accumulate_values(sums.data(), input.group,
                                  kv.Values(t, tokens));
    // [weighted_values]
  }

  // Every weight was relative to the same M in the end, so one division by
  // their sum makes them probabilities.
  // [normalise]
  for (int g = 0; g < input.group; ++g) {
    const OnlineSoftmax& softmax = heads[g].softmax;
    RequireUsableTotal(softmax.S, heads[g].id);
    for (int i = 0; i < d; ++i) out[g * d + i] = softmax.acc[i] / softmax.S;
  }
  // [normalise]
}

}  // namespace kvlab
