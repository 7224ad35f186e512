#include "day09_kv_q8/two_pass.h"

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
    std::vector<float> scores;  // [n], or one tile to be overwritten
    float max;
    float total = 0;
    std::vector<float> acc;  // [d]
  };
  std::vector<Head> heads;
  TileReader reader(primitives_, kv);  // the queries, quantised once
  for (int g = 0; g < input.group; ++g) {
    const HeadId id{input.layer, input.first_head + g, input.position};
    RequireFiniteQuery(input.Query(g), d, id);
    reader.Add(input.Query(g));
    heads.push_back({.id = id,
                     .scores = std::vector<float>(rescan_ ? kTileTokens : n),
                     .max = -std::numeric_limits<float>::infinity(),
                     .acc = std::vector<float>(kv.stride)});
  }
  // Where each head's scores of the tile at t are, and what it adds to.
  std::vector<float*> tiles(heads.size());
  std::vector<TileSum> sums(heads.size());
  const auto go_to_tile = [&](int t) {
    for (std::size_t g = 0; g < heads.size(); ++g) {
      tiles[g] = heads[g].scores.data() + (rescan_ ? 0 : t);
      sums[g] = {tiles[g], heads[g].acc.data()};
    }
  };

  // First pass, over K: the scores and the largest of them. Stored or not.
  // [maximum]
  for (int t = 0; t < n; t += kTileTokens) {
    const int tokens = kv.TileTokens(t);
    go_to_tile(t);
    reader.Scores(t, tokens, 0, tiles);
    for (std::size_t g = 0; g < heads.size(); ++g) {
      const float m = primitives_.max(tiles[g], tokens);
      // A NaN too: it is refused below.
      if (!(m <= heads[g].max)) heads[g].max = m;
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
    const int tokens = kv.TileTokens(t);
    go_to_tile(t);
    if (rescan_) reader.Scores(t, tokens, 0, tiles);
    for (std::size_t g = 0; g < heads.size(); ++g) {
      heads[g].total += primitives_.exp_and_sum(tiles[g], tokens, heads[g].max);
    }
    reader.AddValues(t, tokens, sums);
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
