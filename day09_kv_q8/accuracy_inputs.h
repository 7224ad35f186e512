/// \file
/// Chosen inputs for lesson 9-3: queries, keys and values whose shape is known,
/// to see what q8 does to each.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "common/attention/kv_view.h"

namespace kvlab {

/// Deviates of the normal distribution, the same bits everywhere: a generator
/// that the C++ standard defines to the bit, and Box and Muller's formula
/// (1958) with our own logarithm, sine and cosine. (std::normal_distribution
/// differs from library to library.)
class GaussianSource {
 public:
  explicit GaussianSource(std::uint64_t seed) : random_(seed) {}
  float Next();

 private:
  std::mt19937_64 random_;
  std::optional<float> spare_;  // the formula gives two
};

/// What an input looks like. All begin as independent deviates of mean 0 and
/// sigma 1.
enum class InputKind {
  kGaussian,   ///< as they are
  kOutlier10,  ///< two channels of every key are +10 and -10 sigma
  kOutlier50,  ///< the same with 50
  kSink,       ///< the first key answers the query: it takes 92 % of the weight
  kZeroKeys,   ///< every key is zero: all weights are equal
  kZeroQuery,  ///< the query is zero: the same
  kZeroValues,  ///< every value is zero, and so is the output
  kZeroAll      ///< all of it
};
inline constexpr std::array kInputKinds = {
    InputKind::kGaussian,   InputKind::kOutlier10, InputKind::kOutlier50,
    InputKind::kSink,       InputKind::kZeroKeys,  InputKind::kZeroQuery,
    InputKind::kZeroValues, InputKind::kZeroAll};
/// "gaussian", "outlier 10", ...
std::string_view InputKindName(InputKind kind);

/// One query and one KV head, f32, in memory of its own.
class AccuracyInput {
 public:
  /// Draws n keys and values and a query of `head_dim` elements.
  AccuracyInput(int n, int head_dim, GaussianSource& source);

  /// A copy made into `kind`. The outlier channels are a quarter and three
  /// quarters of head_dim from the start, so that from head_dim 64 on they lie
  /// in different groups of 32: half of the four groups at 128 have one.
  AccuracyInput As(InputKind kind) const;

  std::span<const float> query() const { return q_; }
  KvHeadView kv() const;

 private:
  int n_, d_, stride_;
  std::vector<float> q_;      // [d]
  std::vector<float> k_, v_;  // [n][stride]
};

}  // namespace kvlab
