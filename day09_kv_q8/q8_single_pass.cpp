#include "day09_kv_q8/q8_single_pass.h"

#include <algorithm>
#include <array>
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
    QuantisedQuery q;                          // [d] codes, [d / 32] scales
    OnlineSoftmax softmax;                     // M, S, acc
    std::array<float, kTileTokens> tile = {};  // its scores, then its weights
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

  // What each head gets from a tile of keys, and from a tile of values.
  std::vector<TileScoresQ8> scores;
  std::vector<TileSum> sums;
  for (Head& head : heads) {
    scores.push_back({head.q.view(), head.tile.data()});
    sums.push_back({head.tile.data(), head.softmax.acc.data()});
  }

  for (int t = 0; t < n; t += tile_) {
    const int tokens = std::min(tile_, n - t);
    // Integer dots over groups of 32 codes, put back to size by the scales of q
    // and of each key.
    // [score]
    primitives_.dot_keys_q8(scores.data(), input.group, kv.KeysQ8(t, tokens),
                            scale);
    // [score]

    // The recurrence of stage 2, unchanged: it never sees K or V.
    for (Head& head : heads) {
      const std::span<float> tile(head.tile.data(), tokens);
      TileWatch watch(observer, head.id, t, tile);
      const OnlineStep step = head.softmax.Weigh(primitives_, tile);
      watch.Show(step, head.softmax);
    }

    // The scale of a value row goes into its weight, so its codes are widened,
    // once for all heads, and added in one fma each; no row is ever written as
    // floats.
    // [weighted_values]
    primitives_.accumulate_values_q8(sums.data(), input.group,
                                     kv.ValuesQ8(t, tokens));
    // [weighted_values]
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
