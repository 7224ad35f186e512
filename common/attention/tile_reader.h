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

/// One query over the tokens of one KV head.
class TileReader {
 public:
  /// `query` is padded to QueryStride; it and the view must outlive the reader.
  TileReader(const Primitives& primitives, const KvHeadView& kv,
             const float* query);

  /// scores[i] = q . K[t + i] / sqrt(d) for i < count <= 32.
  void Scores(int t, int count, float* scores) const;

  /// acc[j] = fma(weights[i], V[t + i][j], acc[j]), i ascending; acc [stride].
  void AddValues(int t, int count, const float* weights, float* acc) const;

 private:
  const Primitives& primitives_;
  const KvHeadView& kv_;
  const float* query_;
  std::vector<QuantisedQuery> quantised_;  // one for q8, none for f32
  float scale_;
};

}  // namespace kvlab
