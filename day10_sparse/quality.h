/// \file
/// What choosing blocks costs over a whole text: the share of attention that is
/// kept in each layer and head, and the model's next-token probabilities.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "common/loader/model.h"
#include "day09_kv_q8/accuracy.h"
#include "day10_sparse/choice_quality.h"
#include "day10_sparse/sparse_topk.h"

namespace kvlab {

/// How to measure.
struct QualitySettings {
  KvFormat kv = KvFormat::kQ8;
  std::vector<int> ks = {64, 32, 16, 8, 4, 2, 1};
  SparseOptions sparse = {};  ///< k, importance and sparse_prefill are set here
  int threads = 1;
  /// The share done, 0 ... 1; may throw to stop.
  std::function<void(double done)> progress = {};
};

/// One k.
struct QualityRow {
  int k = 0;
  bool ran_exact = false;            ///< k blocks hold the whole text
  std::vector<ChoiceQuality> heads;  ///< [layers * heads]
  LogitErrors logits;                ///< against exact attention

  ChoiceQuality All() const {
    ChoiceQuality sum;
    for (const ChoiceQuality& head : heads) sum.Merge(head);
    return sum;
  }
};

/// Reads the text once with exact attention and once for each k, where every
/// token's query chooses its blocks by probe and recency (as --sparse-prefill
/// does: importance is known only after a prompt). All get the same tokens
/// (teacher forcing), so position for position only the attention differs.
/// Throws Error.
std::vector<QualityRow> MeasureQuality(const Model& model,
                                       std::span<const int> tokens,
                                       const Primitives& primitives,
                                       const QualitySettings& settings);

}  // namespace kvlab
