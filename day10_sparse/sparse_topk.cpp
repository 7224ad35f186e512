#include "day10_sparse/sparse_topk.h"

#include <algorithm>

#include "common/base/error.h"
#include "day10_sparse/block_masses.h"
#include "day10_sparse/block_probes.h"
#include "day10_sparse/block_tiles.h"

namespace kvlab {

int SparseTopK::packed_step() const {
  const int step = ProbesOf(0, options_.block_tokens, options_.block_tokens,
                            options_.n_probe)
                       .step;
  return step > 1 && options_.block_tokens % step == 0 ? step : 0;
}

std::vector<float> SparseTopK::AttendOver(TileReader& reader, int head,
                                          const Group& group,
                                          std::span<const int> blocks,
                                          float* out, float* total) const {
  const KvHeadView& kv = group.kv;
  const std::vector<BlockTile> tiles =
      TilesOf(blocks, options_.block_tokens, kv.tokens);
  // Stage 1 over the chosen tokens alone, which stand one after another here.
  const int n = tiles.back().at + tiles.back().count;
  std::vector<float> scores(static_cast<std::size_t>(n));
  // [scores]
  for (const BlockTile& tile : tiles) {
    float* const some = &scores[tile.at];
    reader.Scores(tile.t, tile.count, head, {&some, 1}, tile.next);
  }
  // [scores]

  // The weights add up to 1 over these tokens: what was not chosen is left out
  // of the sum as well.
  // [softmax]
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
  for (const BlockTile& tile : tiles) {
    const TileSum sum{&scores[tile.at], acc.data()};
    reader.AddValues(tile.t, tile.count, {&sum, 1}, tile.next);
  }
  for (int i = 0; i < kv.head_dim; ++i) out[i] = acc[i] / *total;
  // [weighted_values]
  return scores;
}

void SparseTopK::AttendGroup(const Group& group, Observer* observer,
                             ImportanceSink* sink, float* out) const {
  Laps laps(times_);
  const KvHeadView& kv = group.kv;
  const auto heads = static_cast<int>(group.queries.size());
  TileReader reader(primitives_, kv);
  for (int g = 0; g < heads; ++g) {
    RequireFiniteQuery(group.queries[g], kv.head_dim, group.Id(g));
    reader.Add(group.queries[g]);
  }
  const auto probes = ProbeBlocks(primitives_, reader, heads, kv.tokens,
                                  options_.block_tokens, options_.n_probe);
  laps.End(&SparseTimes::probe);
  const auto blocks = static_cast<int>(probes[0].size());
  const bool dense = kv.tokens < options_.dense_below;
  for (int g = 0; g < heads; ++g) {
    const std::vector<double> masses =
        selector_->needs_masses()
            ? BlockMasses(reader, primitives_, g, kv.tokens,
                          options_.block_tokens)
            : std::vector<double>{};
    const SelectionInput input{.k = dense ? blocks : options_.k,
                               .probes = probes[g],
                               .importance = group.importance,
                               .masses = masses,
                               .id = group.Id(g)};
    const Selection selection = selector_->Select(input);
    laps.End(&SparseTimes::select);
    if (observer != nullptr) {
      observer->OnSelection(group.Id(g), options_.block_tokens,
                            DescribeSelection(input, selection));
    }
    float total = 0;
    const std::vector<float> weights =
        AttendOver(reader, g, group, selection.blocks,
                   out + std::int64_t{g} * kv.head_dim, &total);
    laps.End(&SparseTimes::attend);
    if (sink == nullptr) continue;
    double* mass = sink->mass + g * sink->head_stride;
    for (const BlockTile& tile :
         TilesOf(selection.blocks, options_.block_tokens, kv.tokens)) {
      for (int j = 0; j < tile.count; ++j) {
        mass[tile.t + j] += weights[tile.at + j] / static_cast<double>(total);
      }
    }
  }
}

void SparseTopK::Attend(const AttendInput& input, std::span<float> out,
                        Observer* observer) {
  KVLAB_CHECK_GE(input.kv.tokens, 1);
  Group group{
      .first = {input.layer, input.first_head, input.position},
      .kv = input.kv,
      .importance = importance_.OfBlocks(input.importance, input.kv.tokens)};
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
