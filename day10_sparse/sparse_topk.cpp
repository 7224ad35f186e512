#include "day10_sparse/sparse_topk.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/error.h"

namespace kvlab {
namespace {

/// Calls body(t, count, at) for each run of at most 32 tokens of the blocks:
/// tokens t to t + count - 1 of the cache, which are number `at` and following
/// among the chosen ones.
template <typename Body>
int ForTiles(std::span<const int> blocks, int block_tokens, int tokens,
             const Body& body) {
  int at = 0;
  for (const int block : blocks) {
    const int last = std::min((block + 1) * block_tokens, tokens);
    for (int t = block * block_tokens; t < last; t += kTileTokens) {
      const int count = std::min(kTileTokens, last - t);
      body(t, count, at);
      at += count;
    }
  }
  return at;
}

}  // namespace

std::vector<std::vector<float>> SparseTopK::Probes(TileReader& reader,
                                                   int heads,
                                                   const KvHeadView& kv) const {
  // A few keys of each block: all of them would be exact attention. The largest
  // dot, not the first or the mean: a needle may stand in the middle of a block
  // of other things.
  // [probe]
  const int block_tokens = options_.block_tokens;
  const int blocks = BlockCount(kv.tokens, block_tokens);
  std::vector<std::vector<float>> probes(
      static_cast<std::size_t>(heads),
      std::vector<float>(static_cast<std::size_t>(blocks),
                         -std::numeric_limits<float>::infinity()));
  std::vector<float> dots(static_cast<std::size_t>(heads) * kTileTokens);
  std::vector<float*> dots_of;
  for (int g = 0; g < heads; ++g) dots_of.push_back(&dots[g * kTileTokens]);
  const auto probe = [&](const ProbeTokens& tokens) {
    for (int i = 0; i < tokens.count(); i += kTileTokens) {
      const int count = std::min(kTileTokens, tokens.count() - i);
      const int t = tokens.first + i * tokens.step;
      reader.Dots(t, count, tokens.step, 0, dots_of, 1.0f);
      for (int g = 0; g < heads; ++g) {
        for (int j = 0; j < count; ++j) {
          float& largest = probes[g][(t + j * tokens.step) / block_tokens];
          const float dot = dots_of[g][j];
          if (!std::isnan(largest) && !(dot <= largest)) largest = dot;
        }
      }
    }
  };
  // Where the step divides the block, the samples of all whole blocks are
  // evenly spaced: one run, which the primitives take 32 at a time.
  const ProbeTokens first =
      ProbesOf(0, kv.tokens, block_tokens, options_.n_probe);
  const int whole = kv.tokens / block_tokens;
  const bool even = whole > 0 && block_tokens % first.step == 0;
  if (even) probe({0, whole * block_tokens, first.step});
  for (int b = even ? whole : 0; b < blocks; ++b) {
    probe(ProbesOf(b, kv.tokens, block_tokens, options_.n_probe));
  }
  // [probe]
  return probes;
}

std::vector<double> SparseTopK::Importance(std::span<const double> importance,
                                           int tokens) const {
  if (importance.empty() || options_.importance == ImportanceUse::kOff) {
    return {};
  }
  // An early token was seen by more queries than a late one.
  std::vector<double> shares(importance.begin(), importance.end());
  if (options_.importance == ImportanceUse::kPerViewer) {
    for (std::size_t s = 0; s < shares.size(); ++s) {
      shares[s] /= static_cast<double>(shares.size() - s);
    }
  }
  return BlockImportance(shares, tokens, options_.block_tokens);
}

Selection SparseTopK::Choose(std::span<const float> probes,
                             std::span<const double> importance,
                             int tokens) const {
  const bool dense = tokens < options_.dense_below;
  return selector_->Select(
      {.k = dense ? static_cast<int>(probes.size()) : options_.k,
       .probes = probes,
       .importance = importance});
}

std::vector<float> SparseTopK::AttendOver(TileReader& reader, int head,
                                          const KvHeadView& kv,
                                          const HeadId& id,
                                          std::span<const int> blocks,
                                          float* out, float* total) const {
  // Stage 1 over the chosen tokens alone, which stand one after another here.
  std::vector<float> scores(blocks.size() *
                            static_cast<std::size_t>(options_.block_tokens));
  // [scores]
  const int n = ForTiles(blocks, options_.block_tokens, kv.tokens,
                         [&](int t, int count, int at) {
                           float* const tile = &scores[at];
                           reader.Scores(t, count, head, {&tile, 1});
                         });
  // [scores]

  // The weights add up to 1 over these tokens: what was not chosen is left out
  // of the sum as well.
  // [softmax]
  scores.resize(static_cast<std::size_t>(n));
  const float M = primitives_.max(scores.data(), n);
  *total = 0;
  for (int t = 0; t < n; t += kTileTokens) {
    *total +=
        primitives_.exp_and_sum(&scores[t], std::min(kTileTokens, n - t), M);
  }
  RequireUsableTotal(*total, id);
  // [softmax]

  // [weighted_values]
  std::vector<float> acc(static_cast<std::size_t>(kv.stride));
  ForTiles(blocks, options_.block_tokens, kv.tokens,
           [&](int t, int count, int at) {
             const TileSum sum{&scores[at], acc.data()};
             reader.AddValues(t, count, {&sum, 1});
           });
  for (int i = 0; i < kv.head_dim; ++i) out[i] = acc[i] / *total;
  // [weighted_values]
  return scores;
}

void SparseTopK::Attend(const AttendInput& input, std::span<float> out,
                        Observer* observer) {
  const KvHeadView& kv = input.kv;
  KVLAB_CHECK_GE(kv.tokens, 1);
  const std::vector<double> importance =
      Importance(input.importance, kv.tokens);
  TileReader reader(primitives_, kv);
  for (int g = 0; g < input.group; ++g) {
    RequireFiniteQuery(input.Query(g), kv.head_dim,
                       {input.layer, input.first_head + g, input.position});
    reader.Add(input.Query(g));
  }
  const auto probes = Probes(reader, input.group, kv);
  for (int g = 0; g < input.group; ++g) {
    const HeadId id{input.layer, input.first_head + g, input.position};
    const Selection selection = Choose(probes[g], importance, kv.tokens);
    if (observer != nullptr) {
      observer->OnSelection(
          id, options_.block_tokens,
          DescribeSelection({.probes = probes[g], .importance = importance},
                            selection));
    }
    float total = 0;
    AttendOver(reader, g, kv, id, selection.blocks, &out[g * kv.head_dim],
               &total);
  }
}

void SparseTopK::Prefill(const PrefillInput& input, ImportanceSink* importance,
                         const PrefillOutput& output) {
  if (!options_.sparse_prefill) {
    return AttentionStage::Prefill(input, importance, output);
  }
  for (int i = 0; i < input.count; ++i) {
    const int position = input.first_position + i;
    const KvHeadView kv = input.kv.First(position + 1);
    TileReader reader(primitives_, kv);
    for (int g = 0; g < input.group; ++g) {
      RequireFiniteQuery(input.Query(i, g), kv.head_dim,
                         {input.layer, input.first_head + g, position});
      reader.Add(input.Query(i, g));
    }
    const auto probes = Probes(reader, input.group, kv);
    for (int g = 0; g < input.group; ++g) {
      const HeadId id{input.layer, input.first_head + g, position};
      const Selection selection = Choose(probes[g], {}, kv.tokens);
      float total = 0;
      const std::vector<float> weights = AttendOver(
          reader, g, kv, id, selection.blocks,
          output.data + i * output.position_stride + g * kv.head_dim, &total);
      if (importance == nullptr) continue;
      double* mass = importance->mass + g * importance->head_stride;
      ForTiles(selection.blocks, options_.block_tokens, kv.tokens,
               [&](int t, int count, int at) {
                 for (int j = 0; j < count; ++j) {
                   mass[t + j] += weights[at + j] / static_cast<double>(total);
                 }
               });
    }
  }
}

}  // namespace kvlab
