#include "day09_kv_q8/q8_single_pass.h"

#include <algorithm>
#include <vector>

#include "common/attention/online_softmax.h"
#include "common/attention/tile_reader.h"
#include "common/base/error.h"

namespace kvlab {

void Q8SinglePass::Attend(const AttendInput& input, std::span<float> out,
                          Observer* observer) {
  const KvHeadView& kv = input.kv;
  KVLAB_CHECK(kv.format == KvFormat::kQ8);
  KVLAB_CHECK_GE(kv.tokens, 1);
  const int n = kv.tokens;
  const int d = kv.head_dim;
  const float scale = AttentionScale(d);

  // q is quantised once: it is one vector for the whole scan. Every cached key
  // was quantised on its own when it was appended, so its scale differs from
  // token to token and multiplies each score below.
  struct Head {
    HeadId id;
    QuantisedQuery q;       // [d] codes, [d / 32] scales
    OnlineSoftmax softmax;  // M, S, acc
  };
  std::vector<Head> heads;
  // [quantise_q]
  for (int g = 0; g < input.group; ++g) {
    const HeadId id{input.layer, input.first_head + g, input.position};
    RequireFiniteQuery(input.Query(g), d, id);
    heads.push_back({id, QuantisedQuery(primitives_, input.Query(g), kv.stride),
                     OnlineSoftmax(kv.stride)});
  }
  // [quantise_q]

  float tile[kTileTokens];  // one tile's scores, then its weights
  for (int t = 0; t < n; t += tile_) {
    const int count = std::min(tile_, n - t);
    const std::span<float> scores(tile, count);
    for (Head& head : heads) {
      // Integer dots over groups of 32 codes, put back to size by the scales of
      // q and of each key.
      // [score]
      primitives_.dot_keys_q8(head.q.view(), kv.KeyCodes(t), kv.key_scales + t,
                              count, kv.stride, scale, tile);
      // [score]
      TileWatch watch(observer, head.id, t, scores);

      // The recurrence of stage 2, unchanged: it never sees K or V.
      const OnlineStep step = head.softmax.Weigh(primitives_, scores);

      // The scale of a value row goes into its weight, so its codes are widened
      // and added in one fma each; no row is ever written as floats.
      // [weighted_values]
      primitives_.accumulate_values_q8(tile, kv.ValueCodes(t),
                                       kv.value_scales + t, count, kv.stride,
                                       head.softmax.acc.data());
      // [weighted_values]
      watch.Show(step, head.softmax);
    }
  }

  // [normalise]
  for (int g = 0; g < input.group; ++g) {
    const OnlineSoftmax& softmax = heads[g].softmax;
    RequireUsableTotal(softmax.S, heads[g].id);
    for (int i = 0; i < d; ++i) out[g * d + i] = softmax.acc[i] / softmax.S;
  }
  // [normalise]
}

}  // namespace kvlab
