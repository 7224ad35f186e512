#include "common/attention/attention_stage.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/attention/tile_reader.h"
#include "common/base/error.h"

namespace kvlab {
namespace {

// Prompt positions that share each tile of keys and values while it is in the
// L1 cache. With two heads a group, 8 rows of 2,061 scores are 132 KB: L2.
constexpr int kPositionsPerBlock = 8;

/// One query of a block: its scores (later weights) and its accumulators.
struct Row {
  HeadId id;
  int head;  // in the group
  float* scores;
  float* acc;
  float total;

  /// Tokens of the tile that begins at token t that this query may see.
  int VisibleTokens(int t) const {
    return std::min(kTileTokens, id.position + 1 - t);
  }
};

/// Calls body(t, tokens, run) for the tile that begins at each token t <
/// visible and each run of successive rows that may see the same `tokens` > 0
/// of it. Only where the queries' own positions are do rows differ.
template <typename Body>
void ForRuns(std::span<const Row> rows, int visible, const Body& body) {
  for (int t = 0; t < visible; t += kTileTokens) {
    for (std::size_t first = 0; first < rows.size();) {
      const int tokens = rows[first].VisibleTokens(t);
      std::size_t last = first + 1;
      while (last < rows.size() && rows[last].VisibleTokens(t) == tokens) {
        ++last;
      }
      if (tokens > 0) body(t, tokens, rows.subspan(first, last - first));
      first = last;
    }
  }
}

/// Adds probability = weight / total of every visible token to the head's mass.
void RecordImportance(const Row& row, const ImportanceSink& sink) {
  double* mass = sink.mass + row.head * sink.head_stride;
  const double total = row.total;
  for (int s = 0; s <= row.id.position; ++s) mass[s] += row.scores[s] / total;
}

}  // namespace

float AttentionScale(int head_dim) {
  return 1.0f / std::sqrt(static_cast<float>(head_dim));
}

void RequireFiniteQuery(const float* query, int head_dim, const HeadId& id) {
  for (int i = 0; i < head_dim; ++i) {
    if (!std::isfinite(query[i])) {
      Fail("attention: the query is not finite (element ", i, " is ", query[i],
           ") in ", id,
           "; the weights of the model are damaged or overflow float32");
    }
  }
}

void RequireUsableTotal(float total, const HeadId& id) {
  if (std::isfinite(total) && total > 0) return;
  Fail(
      "attention: the softmax total is ", total,
      ", expected a finite positive number, in ", id,
      "; the scores overflow float32, so the weights of the model are damaged");
}

void AttentionStage::Prefill(const PrefillInput& input,
                             ImportanceSink* importance,
                             const PrefillOutput& output) {
  const KvHeadView& kv = input.kv;
  KVLAB_CHECK_EQ(kv.tokens, input.first_position + input.count);
  const std::int64_t score_stride = kv.tokens;
  const int rows_per_block = kPositionsPerBlock * input.group;
  std::vector<float> scores(
      static_cast<std::size_t>(score_stride * rows_per_block));
  std::vector<float> accumulators(
      static_cast<std::size_t>(rows_per_block * kv.stride));
  std::vector<Row> rows;
  std::vector<float*> scores_of;
  std::vector<TileSum> sums;

  for (int first = 0; first < input.count; first += kPositionsPerBlock) {
    const int last = std::min(first + kPositionsPerBlock, input.count);
    TileReader reader(primitives_, kv);
    rows.clear();
    for (int i = first; i < last; ++i) {
      for (int g = 0; g < input.group; ++g) {
        const auto r = static_cast<std::int64_t>(rows.size());
        const int position = input.first_position + i;
        const HeadId id{input.layer, input.first_head + g, position};
        RequireFiniteQuery(input.Query(i, g), kv.head_dim, id);
        reader.Add(input.Query(i, g));
        rows.push_back({.id = id,
                        .head = g,
                        .scores = scores.data() + r * score_stride,
                        .acc = accumulators.data() + r * kv.stride,
                        .total = 0});
      }
    }
    std::fill(accumulators.begin(), accumulators.end(), 0.0f);
    const int visible = input.first_position + last;

    // Pass 1: every score of every row, tile by tile.
    ForRuns(rows, visible, [&](int t, int tokens, std::span<const Row> run) {
      scores_of.clear();
      for (const Row& row : run) scores_of.push_back(row.scores + t);
      reader.Scores(t, tokens, static_cast<int>(run.data() - rows.data()),
                    scores_of);
    });
    // Pass 2: maximum, weights and their total.
    for (Row& row : rows) {
      const float max = primitives_.max(row.scores, row.id.position + 1);
      for (int t = 0; t <= row.id.position; t += kTileTokens) {
        row.total +=
            primitives_.exp_and_sum(row.scores + t, row.VisibleTokens(t), max);
      }
      RequireUsableTotal(row.total, row.id);
      if (importance != nullptr) RecordImportance(row, *importance);
    }
    // Pass 3: the weighted sum of the values, then one division each.
    ForRuns(rows, visible, [&](int t, int tokens, std::span<const Row> run) {
      sums.clear();
      for (const Row& row : run) sums.push_back({row.scores + t, row.acc});
      reader.AddValues(t, tokens, sums);
    });
    for (const Row& row : rows) {
      float* out =
          output.data +
          (row.id.position - input.first_position) * output.position_stride +
          row.head * kv.head_dim;
      for (int i = 0; i < kv.head_dim; ++i) out[i] = row.acc[i] / row.total;
    }
  }
}

}  // namespace kvlab
