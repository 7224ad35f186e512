/// \file
/// Scores and weighted sums over a run of tokens, in whatever format the cache
/// stores. For code that serves both formats (prefill, sparse attention); the
/// stages of one format call the primitives themselves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/attention/kv_view.h"
#include "common/simd/primitives.h"

namespace kvlab {

/// A query quantised for q8 dots, in groups of 32 elements with one scale each.
/// It is done once for a whole scan: q is one vector for all tokens, while
/// every cached key was quantised on its own.
class QuantisedQuery {
 public:
  /// Quantises query [stride], stride a multiple of 32, padded with zeros.
  QuantisedQuery(const Primitives& primitives, const float* query, int stride);

  Q8Query view() const { return {codes_.data(), scales_.data()}; }

 private:
  std::vector<std::int8_t> codes_;  // [stride]
  std::vector<float> scales_;       // [stride / 32]
};

/// Several queries over the tokens of one KV head.
class TileReader {
 public:
  /// The view must outlive the reader.
  TileReader(const Primitives& primitives, const KvHeadView& kv);

  /// Adds a query, padded to QueryStride, which must outlive the reader; its
  /// number is how many were added before.
  void Add(const float* query);

  /// scores[i][j] = q . K[t + j] / sqrt(d) for j < count <= 32, q being query
  /// first + i. `next` >= 0: after this tile the one at token `next` is read.
  void Scores(int t, int count, int first, std::span<float* const> scores,
              int next = -1) {
    Dots(t, count, 1, first, scores, scale_, next);
  }

  /// The same for every step-th token from t on, times `scale`.
  void Dots(int t, int count, int step, int first, std::span<float* const> dots,
            float scale, int next = -1);

  /// acc[j] = fma(weights[i], V[t + i][j], acc[j]), i < count ascending, for
  /// each head. `next` as in Scores.
  void AddValues(int t, int count, std::span<const TileSum> heads,
                 int next = -1) const;

 private:
  const Primitives& primitives_;
  const KvHeadView& kv_;
  float scale_;
  // One element a query, in the form that the cache's format needs.
  std::vector<TileScores> queries_;
  std::vector<QuantisedQuery> quantised_;
  std::vector<TileScoresQ8> queries_q8_;
};

}  // namespace kvlab
