#include "day09_kv_q8/two_pass.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "common/attention/tile_reader.h"
#include "common/base/error.h"

namespace kvlab {

void TwoPass::Attend(const AttendInput& input, std::span<float> out,
                     Observer* observer) {
  const KvHeadView& kv = input.kv;
  KVLAB_CHECK(kv.format == KvFormat::kQ8);
  KVLAB_CHECK_GE(kv.tokens, 1);
  const int n = kv.tokens;
  const int d = kv.head_dim;

  struct Head {
    HeadId id;
    TileReader reader;          // the query, quantised once
    std::vector<float> scores;  // [n], or one tile to be overwritten
    float max;
    float total = 0;
    std::vector<float> acc;  // [d]
  };
  std::vector<Head> heads;
  for (int g = 0; g < input.group; ++g) {
    const HeadId id{input.layer, input.first_head + g, input.position};
    RequireFiniteQuery(input.Query(g), d, id);
    heads.push_back({.id = id,
                     .reader = TileReader(primitives_, kv, input.Query(g)),
                     .scores = std::vector<float>(rescan_ ? kTileTokens : n),
                     .max = -std::numeric_limits<float>::infinity(),
                     .acc = std::vector<float>(kv.stride)});
  }
  const auto tile_of = [&](Head& head, int t) {
    return head.scores.data() + (rescan_ ? 0 : t);
  };

  // First pass, over K: the scores and the largest of them. Stored or not.
  // [maximum]
  for (int t = 0; t < n; t += kTileTokens) {
    const int count = kv.TileTokens(t);
    for (Head& head : heads) {
      head.reader.Scores(t, count, tile_of(head, t));
      const float m = primitives_.max(tile_of(head, t), count);
      if (!(m <= head.max)) head.max = m;  // a NaN too: it is refused below
    }
  }
  // [maximum]
  for (const Head& head : heads) {
    if (observer != nullptr && !rescan_) {
      observer->OnScores(head.id, head.scores);
    }
  }

  // Second pass: the weights, from the stored scores or from K once more, and
  // the values.
  // [weights_and_values]
  for (int t = 0; t < n; t += kTileTokens) {
    const int count = kv.TileTokens(t);
    for (Head& head : heads) {
      float* tile = tile_of(head, t);
      if (rescan_) head.reader.Scores(t, count, tile);
      head.total += primitives_.exp_and_sum(tile, count, head.max);
      head.reader.AddValues(t, count, tile, head.acc.data());
    }
  }
  // [weights_and_values]

  for (int g = 0; g < input.group; ++g) {
    const Head& head = heads[g];
    RequireUsableTotal(head.total, head.id);
    if (observer != nullptr && !rescan_) {
      observer->OnWeights(head.id, head.scores, head.max, head.total);
    }
    for (int i = 0; i < d; ++i) out[g * d + i] = head.acc[i] / head.total;
  }
}

}  // namespace kvlab
