#include "day10_sparse/sparse_topk.h"

#include <algorithm>

#include "common/base/error.h"
#include "day10_sparse/block_probes.h"

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

std::vector<float> SparseTopK::AttendOver(TileReader& reader, int head,
                                          const Group& group,
                                          std::span<const int> blocks,
                                          float* out, float* total) const {
  const KvHeadView& kv = group.kv;
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
  RequireUsableTotal(*total, group.Id(head));
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

void SparseTopK::AttendGroup(const Group& group, Observer* observer,
                             ImportanceSink* sink, float* out) const {
  const KvHeadView& kv = group.kv;
  const auto heads = static_cast<int>(group.queries.size());
  TileReader reader(primitives_, kv);
  for (int g = 0; g < heads; ++g) {
    RequireFiniteQuery(group.queries[g], kv.head_dim, group.Id(g));
    reader.Add(group.queries[g]);
  }
  const auto probes = ProbeBlocks(reader, heads, kv.tokens,
                                  options_.block_tokens, options_.n_probe);
  const auto blocks = static_cast<int>(probes[0].size());
  const bool dense = kv.tokens < options_.dense_below;
  for (int g = 0; g < heads; ++g) {
    const SelectionInput input{.k = dense ? blocks : options_.k,
                               .probes = probes[g],
                               .importance = group.importance};
    const Selection selection = selector_->Select(input);
    if (observer != nullptr) {
      observer->OnSelection(group.Id(g), options_.block_tokens,
                            DescribeSelection(input, selection));
    }
    float total = 0;
    const std::vector<float> weights =
        AttendOver(reader, g, group, selection.blocks,
                   out + std::int64_t{g} * kv.head_dim, &total);
    if (sink == nullptr) continue;
    double* mass = sink->mass + g * sink->head_stride;
    ForTiles(selection.blocks, options_.block_tokens, kv.tokens,
             [&](int t, int count, int at) {
               for (int j = 0; j < count; ++j) {
                 mass[t + j] += weights[at + j] / static_cast<double>(total);
               }
             });
  }
}

void SparseTopK::Attend(const AttendInput& input, std::span<float> out,
                        Observer* observer) {
  KVLAB_CHECK_GE(input.kv.tokens, 1);
  Group group{.first = {input.layer, input.first_head, input.position},
              .kv = input.kv,
              .importance = Importance(input.importance, input.kv.tokens)};
  for (int g = 0; g < input.group; ++g) {
    group.queries.push_back(input.Query(g));
  }
  AttendGroup(group, observer, nullptr, out.data());
}

void SparseTopK::Prefill(const PrefillInput& input, ImportanceSink* importance,
                         const PrefillOutput& output) {
  if (!options_.sparse_prefill) {
    return AttentionStage::Prefill(input, importance, output);
  }
  for (int i = 0; i < input.count; ++i) {
    const int position = input.first_position + i;
    Group group{.first = {input.layer, input.first_head, position},
                .kv = input.kv.First(position + 1)};
    for (int g = 0; g < input.group; ++g) {
      group.queries.push_back(input.Query(i, g));
    }
    AttendGroup(group, nullptr, importance,
                output.data + i * output.position_stride);
  }
}

}  // namespace kvlab
