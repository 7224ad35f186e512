/// \file
/// Lesson 9-3: what q8 costs. Attention of one query over f32 keys and values,
/// beside the same with some of q, K and V rounded to 8 bits.
///
/// | arm    | q  | K  | V  | what it shows                                    |
/// |--------|----|----|----|--------------------------------------------------|
/// | all    | q8 | q8 | q8 | what `q8_single_pass` computes, but for rounding |
/// | K only |    | q8 |    | weights that the keys' rounding moved            |
/// | V only |    |    | q8 | the right weights over rounded values            |
/// | q only | q8 |    |    | weights that the query's rounding moved          |
///
/// Each arm with one scale a row of K and V, as the KV cache has it, and with
/// one scale for every 32 elements; q always has one for every 32.
///
/// This is a reference: everything after the quantiser is done in double, so
/// what it shows is the rounding to 8 bits and nothing else. Sums have one
/// defined order; the results are the same bits everywhere.
///
/// The bound (derived in the lesson). Write q', K' for code * scale, s_K, s_q
/// for the scales, |x|_1 for the sum of |x[i]|. Rounding moves an element by at
/// most half a scale, and
///
///     q.K - q'.K' = q.(K - K') + (q - q').K'
///
/// is an identity: q is the original, K' the codes, and no product of two
/// errors is left over. So
///
///     |score error| <= 1/sqrt(d) * 1/2 * ( sum over K's groups s_K |q|_1
///                                        + sum over q's groups s_q |K'|_1 )
///
/// with the first sum alone for "K only"; "q only" has K in place of K'.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/attention/attention_stage.h"
#include "common/lab/dump_comparison.h"

namespace kvlab {

/// What is rounded to 8 bits.
enum class Arm { kAll, kKeys, kValues, kQuery };
inline constexpr std::array kArms = {Arm::kAll, Arm::kKeys, Arm::kValues,
                                     Arm::kQuery};
/// "all", "K only", "V only", "q only".
std::string_view ArmName(Arm arm);

/// How many elements of a row of K or V share a scale.
enum class ScaleForm { kPerRow, kPer32 };
inline constexpr std::array kScaleForms = {ScaleForm::kPerRow,
                                           ScaleForm::kPer32};
/// "per row", "per 32".
std::string_view ScaleFormName(ScaleForm form);

/// Errors of scores, each beside its bound.
struct ScoreErrors {
  double largest = 0;           ///< largest |error|
  double bound_of_largest = 0;  ///< the bound of that score
  double worst_ratio = 0;       ///< largest |error| / bound; 0 / 0 is 0
  std::int64_t scores = 0;
  std::int64_t violations = 0;  ///< |error| > bound, or no number

  void Add(double error, double bound);
  void Merge(const ScoreErrors& other);
};

/// One query in one arm.
struct ArmOutcome {
  std::vector<double> out;     ///< [d], the attention output
  double total_variation = 0;  ///< 1/2 sum |p - p'| of the weights, 0 ... 1
  ScoreErrors scores;
};

/// A value for each form of scales and arm.
template <typename T>
struct PerArm {
  std::array<std::array<T, kArms.size()>, kScaleForms.size()> cells;

  std::array<T, kArms.size()>& Of(ScaleForm form) {
    return cells[static_cast<std::size_t>(form)];
  }
  T& At(ScaleForm form, Arm arm) {
    return cells[static_cast<std::size_t>(form)][static_cast<std::size_t>(arm)];
  }
  const T& At(ScaleForm form, Arm arm) const {
    return cells[static_cast<std::size_t>(form)][static_cast<std::size_t>(arm)];
  }
};

/// One query over one KV head.
struct QueryOutcome {
  std::vector<double> exact;  ///< [d]: nothing rounded
  double key_peak = 0;        ///< of the KV head, see AccuracyHead
  PerArm<ArmOutcome> arms;
};

/// Rows rounded to 8 bits: element i of row t is
/// codes[t * cols + i] * scales[t * groups() + i / group].
struct Q8Rows {
  int cols = 0;
  int group = 0;  ///< elements that share a scale; the last may be fewer
  std::vector<std::int8_t> codes = {};
  std::vector<float> scales = {};

  int groups() const { return (cols + group - 1) / group; }
};

/// The keys and values of one KV head, exact and in both forms of q8.
class AccuracyHead {
 public:
  /// `kv`: f32; it and `primitives` (whose quantiser is used) must outlive the
  /// object.
  AccuracyHead(const Primitives& primitives, const KvHeadView& kv);

  /// How much the largest channel of the keys stands out: the root of its mean
  /// square over tokens, divided by the median of all channels. 0 where that is
  /// zero.
  double key_peak() const { return key_peak_; }

  /// All arms for a query [head_dim] of finite floats.
  QueryOutcome Measure(std::span<const float> query) const;

 private:
  struct Query;
  void MeasureForm(ScaleForm form, const Query& query,
                   std::array<ArmOutcome, kArms.size()>& arms) const;

  const Primitives& primitives_;
  const KvHeadView& kv_;
  std::array<Q8Rows, kScaleForms.size()> keys_, values_;
  double key_peak_;
};

/// The most by which the quantiser moves an element, given the scale it
/// returned: half a scale, and a little because x / scale is a float quotient
/// (see accuracy.cpp).
double LargestRounding(float scale);

/// How far attention outputs are from exact ones, over queries.
class OutputErrors {
 public:
  /// One query's output and the exact one, [d].
  void Add(std::span<const double> out, std::span<const double> exact);

  /// norm(out - exact) / norm(exact) of each query, and of these the root of
  /// the mean square: each query counts the same, however long its output.
  /// 0 where both are zero.
  double relative_l2() const { return relative_.relative_l2(); }
  /// The same as pictures take it: of outputs divided by norm(exact).
  const ErrorMeasure& relative() const { return relative_; }
  /// Largest |out - exact| of all elements.
  double max_abs() const { return max_abs_; }

 private:
  ErrorMeasure relative_;
  double max_abs_ = 0;
};

/// What one arm did to many queries.
class ArmErrors {
 public:
  void Add(std::span<const double> exact, const ArmOutcome& outcome);

  const OutputErrors& output() const { return output_; }
  const ScoreErrors& scores() const { return scores_; }
  std::int64_t queries() const { return queries_; }
  /// Over queries. The cosine of two zero vectors is 1, of one with another
  /// vector 0.
  double mean_cosine() const { return cosine_sum_ / Count(); }
  double least_cosine() const { return least_cosine_; }
  double mean_total_variation() const { return variation_sum_ / Count(); }
  double largest_total_variation() const { return largest_variation_; }

 private:
  double Count() const { return static_cast<double>(queries_); }

  OutputErrors output_;
  ScoreErrors scores_;
  std::int64_t queries_ = 0;
  double cosine_sum_ = 0;
  double least_cosine_ = 1;
  double variation_sum_ = 0;
  double largest_variation_ = 0;
};

/// All arms over many queries.
class AccuracyErrors {
 public:
  void Add(const QueryOutcome& outcome);
  const ArmErrors& At(ScaleForm form, Arm arm) const {
    return arms_.At(form, arm);
  }
  /// The largest key_peak.
  double key_peak() const { return key_peak_; }
  /// Scores beyond their bound, in all arms and forms.
  std::int64_t violations() const;

 private:
  PerArm<ArmErrors> arms_;
  double key_peak_ = 0;
};

/// The logits of a q8 run against those of an f32 run of the same text.
class LogitErrors {
 public:
  /// The logits after one more token, [vocab] each, finite.
  void Add(std::span<const float> f32, std::span<const float> q8);

  std::int64_t positions() const { return positions_; }
  /// KL(f32 || q8) in nats, the mean and the largest over positions.
  double mean_kl() const { return sum_ / static_cast<double>(positions_); }
  double largest_kl() const { return largest_; }
  /// Positions at which both have the same most probable token.
  std::int64_t same_top() const { return same_top_; }
  /// Where they have not: by how much, in the probabilities of the f32 run, its
  /// token was ahead of the one that the q8 run puts first; the most of it.
  double largest_lead_lost() const { return largest_lead_lost_; }

 private:
  std::int64_t positions_ = 0;
  std::int64_t same_top_ = 0;
  double sum_ = 0;
  double largest_ = 0;
  double largest_lead_lost_ = 0;
};

}  // namespace kvlab
