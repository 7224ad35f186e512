#include "day09_kv_q8/online_softmax.h"

#include <algorithm>
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
    const float* q;         // [d]
    OnlineSoftmax softmax;  // M, S, acc
  };
  std::vector<Head> heads;
  for (int g = 0; g < input.group; ++g) {
    const HeadId id{input.layer, input.first_head + g, input.position};
    RequireFiniteQuery(input.Query(g), d, id);
    heads.push_back({id, input.Query(g), OnlineSoftmax(kv.stride)});
  }

  float tile[kTileTokens];  // one tile's scores, then its weights
  for (int t = 0; t < n; t += tile_) {
    const int count = std::min(tile_, n - t);
    const std::span<float> scores(tile, count);
    for (Head& head : heads) {
      // The scores of this tile alone.
      // [score]
      primitives_.dot_keys(head.q, kv.Key(t), count, kv.stride, scale, tile);
      // [score]
      TileWatch watch(observer, head.id, t, scores);

      // The running softmax: M and S take the tile in, a larger score rescales
      // what was summed before, and the scores become weights.
      const OnlineStep step = head.softmax.Weigh(primitives_, scores);

      // The values of the same tile, while it is at hand.
      // [weighted_values]
      primitives_.accumulate_values(tile, kv.Value(t), count, kv.stride,
                                    head.softmax.acc.data());
      // [weighted_values]
      watch.Show(step, head.softmax);
    }
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
