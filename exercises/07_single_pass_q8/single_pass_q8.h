/// \file
/// Exercise "single_pass_q8": attention of one query over q8 keys and values
/// in one pass.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvlab {

/// A query in 8 bits: element i is codes[i] * scales[i / 32].
struct QueryCodes {
  std::vector<std::int8_t> codes;  ///< [d]
  std::vector<float> scales;       ///< one for every 32 codes; the last may
                                   ///< have fewer
};

/// The keys, or the values, of one KV head in 8 bits, as the cache has them:
/// element i of row t is Codes(t)[i] * Scale(t).
class CodeRows {
 public:
  CodeRows(int d, std::vector<std::int8_t> codes, std::vector<float> scales)
      : d_(d),
        codes_(std::move(codes)),
        scales_(std::move(scales)),
        looks_(scales_.size()) {}

  int d() const { return d_; }
  int tokens() const { return static_cast<int>(scales_.size()); }
  /// Row t, d codes.
  std::span<const std::int8_t> Codes(int t) const {
    if (t != last_) ++looks_[t];
    last_ = t;
    return std::span(codes_).subspan(static_cast<std::size_t>(t) * d_, d_);
  }
  float Scale(int t) const { return scales_[t]; }

  /// How often row t was looked at, other rows in between; for the check.
  int Looks(int t) const { return looks_[t]; }

 private:
  int d_;
  std::vector<std::int8_t> codes_;  // [tokens][d]
  std::vector<float> scales_;       // [tokens]
  mutable std::vector<int> looks_;
  mutable int last_ = -1;
};

/// Quantises query [d] in groups of 32, the last of which may be shorter. In
/// each: scale = max|x| / 127; if that is 0 all codes are 0, else a code is
/// x / scale to the nearest integer, ties to the even one, within +-127.
QueryCodes QuantiseQuery(std::span<const float> query);

/// The score of token t, (q . K[t]) / sqrt(d), of codes and scales.
float Score(const QueryCodes& query, const CodeRows& keys, int t);

/// out[d] = sum over t of p[t] V[t], p = softmax of the scores. `keys` and
/// `values` have the same tokens, at least one.
std::vector<float> SinglePass(std::span<const float> query,
                              const CodeRows& keys, const CodeRows& values);

}  // namespace kvlab
