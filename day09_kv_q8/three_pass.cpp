#include "day09_kv_q8/three_pass.h"

#include <vector>

#include "common/base/error.h"

namespace kvlab {

void ThreePass::Attend(const AttendInput& input, std::span<float> out,
                       Observer* observer) {
  const KvHeadView& kv = input.kv;
  KVLAB_CHECK(kv.format == KvFormat::kF32);
  KVLAB_CHECK_GE(kv.tokens, 1);
  const int n = kv.tokens;
  const int d = kv.head_dim;
  const float scale = AttentionScale(d);

  // The query heads of a GQA group share one KV head. All of them use a tile of
  // 32 tokens while it is in the L1 cache, so that each byte of K and V comes
  // from memory once for the whole group.
  struct Head {
    HeadId id;
    const float* q;             // [d]
    std::vector<float> scores;  // [n], weights after pass 2
    float total = 0;            // l
    std::vector<float> acc;     // [d]
  };
  std::vector<Head> heads;
  for (int g = 0; g < input.group; ++g) {
    const HeadId id{input.layer, input.first_head + g, input.position};
    RequireFiniteQuery(input.Query(g), d, id);
    heads.push_back({.id = id,
                     .q = input.Query(g),
                     .scores = std::vector<float>(n),
                     .acc = std::vector<float>(kv.stride)});
  }

  // Pass 1: the scores. Nothing can be weighted before the largest is known, so
  // all n of them are stored, for each head.
  // [scores]
  std::vector<TileScores> tile(heads.size());  // where each head's scores go
  for (int t = 0; t < n; t += kTileTokens) {
    for (std::size_t g = 0; g < heads.size(); ++g) {
      tile[g] = {heads[g].q, &heads[g].scores[t]};
    }
    primitives_.dot_keys(tile.data(), input.group, kv.Keys(t, kv.TileTokens(t)),
                         scale);
  }
  // [scores]

  // Pass 2: softmax. Subtracting the maximum M divides out of the result, and
  // keeps exp from overflowing: its argument is never positive. The
  // weights p take the place of the scores; their total is divided out last.
  // [softmax]
  for (Head& head : heads) {
    if (observer != nullptr) observer->OnScores(head.id, head.scores);
    const float M = primitives_.max(head.scores.data(), n);
    for (int t = 0; t < n; t += kTileTokens) {
      head.total +=
          primitives_.exp_and_sum(&head.scores[t], kv.TileTokens(t), M);
    }
    RequireUsableTotal(head.total, head.id);
    if (observer != nullptr) {
      observer->OnWeights(head.id, head.scores, M, head.total);
    }
  }
  // [softmax]

  // Pass 3: the weighted sum of the values, token after token, and one
  // division by the total for each of the d elements.
  // [weighted_values]
  std::vector<TileSum> sums(heads.size());
  for (int t = 0; t < n; t += kTileTokens) {
    for (std::size_t g = 0; g < heads.size(); ++g) {
      sums[g] = {&heads[g].scores[t], heads[g].acc.data()};
    }
    primitives_.accumulate_values(sums.data(), input.group,
                                  kv.Values(t, kv.TileTokens(t)));
  }
  for (int g = 0; g < input.group; ++g) {
    for (int i = 0; i < d; ++i) {
      out[g * d + i] = heads[g].acc[i] / heads[g].total;
    }
  }
  // [weighted_values]
}

}  // namespace kvlab
