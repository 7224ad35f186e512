#include "day09_kv_q8/accuracy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/deterministic_math.h"
#include "common/base/error.h"
#include "common/engine/generate.h"

namespace kvlab {
namespace {

/// sum of a[i] * b[i], in eight lanes and then as a tree: a defined order that
/// a compiler may still compute with vectors.
template <typename T>
double Dot(const double* a, const T* b, int n) {
  constexpr int kParts = 8;
  double part[kParts] = {};
  int i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (int j = 0; j < kParts; ++j) {
      part[j] += a[i + j] * static_cast<double>(b[i + j]);
    }
  }
  for (; i < n; ++i) part[i % kParts] += a[i] * static_cast<double>(b[i]);
  return ((part[0] + part[4]) + (part[2] + part[6])) +
         ((part[1] + part[5]) + (part[3] + part[7]));
}

template <typename T>
double SumOfMagnitudes(const T* x, int n) {
  double sum = 0;
  for (int i = 0; i < n; ++i) sum += std::fabs(static_cast<double>(x[i]));
  return sum;
}

/// Rows of floats, `stride` apart, to q8.
Q8Rows Quantise(const Primitives& primitives, const float* x, int rows,
                int cols, int stride, int group) {
  Q8Rows q8{.cols = cols, .group = group};
  q8.codes.resize(static_cast<std::size_t>(rows) * cols);
  q8.scales.resize(static_cast<std::size_t>(rows) * q8.groups());
  std::int8_t* code = q8.codes.data();
  float* scale = q8.scales.data();
  for (int t = 0; t < rows; ++t) {
    const float* row = x + std::int64_t{t} * stride;
    for (int i = 0; i < cols; i += group) {
      const int n = std::min(group, cols - i);
      *scale++ = primitives.quantise(row + i, n, code);
      code += n;
    }
  }
  return q8;
}

/// Calls work(first element, elements, scale of the group) for each group of a
/// row.
template <typename Work>
void ForEachGroup(const Q8Rows& q8, int row, Work work) {
  const float* scale =
      q8.scales.data() + static_cast<std::int64_t>(row) * q8.groups();
  for (int i = 0; i < q8.cols; i += q8.group) {
    work(i, std::min(q8.group, q8.cols - i), *scale++);
  }
}

/// A row as the numbers that its codes stand for. Exact: a code and a scale
/// have 7 and 24 bits.
void Dequantise(const Q8Rows& q8, int row, double* out) {
  const std::int8_t* codes =
      q8.codes.data() + static_cast<std::int64_t>(row) * q8.cols;
  ForEachGroup(q8, row, [&](int first, int n, double scale) {
    for (int i = first; i < first + n; ++i) out[i] = codes[i] * scale;
  });
}

/// softmax(scores), in double.
std::vector<double> Softmax(std::span<const double> scores) {
  std::vector<double> p(scores.size());
  const double max = *std::ranges::max_element(scores);
  double total = 0;
  for (std::size_t t = 0; t < p.size(); ++t) {
    p[t] = ExpDouble(scores[t] - max);
    total += p[t];
  }
  for (double& x : p) x /= total;
  return p;
}

/// out += weight * row.
template <typename T>
void AddRow(double weight, const T* row, std::span<double> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] += weight * static_cast<double>(row[i]);
  }
}

double TotalVariation(std::span<const double> p, std::span<const double> q) {
  double sum = 0;
  for (std::size_t t = 0; t < p.size(); ++t) sum += std::fabs(p[t] - q[t]);
  return sum / 2;
}

double Cosine(std::span<const double> a, std::span<const double> b) {
  const int n = static_cast<int>(a.size());
  const double aa = Dot(a.data(), a.data(), n);
  const double bb = Dot(b.data(), b.data(), n);
  if (aa == 0 || bb == 0) return aa == bb ? 1 : 0;
  return std::min(1.0,
                  Dot(a.data(), b.data(), n) / (std::sqrt(aa) * std::sqrt(bb)));
}

/// See AccuracyHead::key_peak.
double PeakOfChannels(const KvHeadView& kv) {
  std::vector<double> squares(static_cast<std::size_t>(kv.head_dim), 0.0);
  for (int t = 0; t < kv.tokens; ++t) {
    for (int i = 0; i < kv.head_dim; ++i) {
      squares[i] += double{kv.Key(t)[i]} * kv.Key(t)[i];
    }
  }
  std::ranges::sort(squares);
  const double median = squares[squares.size() / 2];
  return median > 0 ? std::sqrt(squares.back() / median) : 0;
}

}  // namespace

std::string_view ArmName(Arm arm) {
  switch (arm) {
    case Arm::kAll:
      return "all";
    case Arm::kKeys:
      return "K only";
    case Arm::kValues:
      return "V only";
    case Arm::kQuery:
      return "q only";
  }
  return "";
}

std::string_view ScaleFormName(ScaleForm form) {
  return form == ScaleForm::kPerRow ? "per row" : "per 32";
}

// --- The bound ---------------------------------------------------------------

double LargestRounding(float scale) {
  // A code is the nearest integer to the float x / scale, which is off the true
  // quotient by up to 2^-24 of it. That is at most 127 (1 + 2^-24), so the code
  // is off by at most 1/2 + 127 * 2^-24, and a little: 2^-17 is 128 * 2^-24.
  // What is left of it is far more than a sum of d products in double can be
  // off, so the comparison below needs no other allowance.
  constexpr double kHalfStep = 0.5 + 0x1p-17;
  // Below the normal floats a scale has fewer bits, at last none; what is known
  // then is that |x| was below 127 of the smallest normal float.
  constexpr float kSmallest = std::numeric_limits<float>::min();
  const double tiny = scale < kSmallest ? 127.0 * kSmallest : 0.0;
  return kHalfStep * scale + tiny;
}

void ScoreErrors::Add(double error, double bound) {
  error = std::fabs(error);
  ++scores;
  if (!(error <= bound)) ++violations;  // NaN too
  if (error > largest) {
    largest = error;
    bound_of_largest = bound;
  }
  if (error > 0) worst_ratio = std::max(worst_ratio, error / bound);
}

void ScoreErrors::Merge(const ScoreErrors& other) {
  if (other.largest > largest) {
    largest = other.largest;
    bound_of_largest = other.bound_of_largest;
  }
  worst_ratio = std::max(worst_ratio, other.worst_ratio);
  scores += other.scores;
  violations += other.violations;
}

// --- One query ---------------------------------------------------------------

AccuracyHead::AccuracyHead(const Primitives& primitives, const KvHeadView& kv)
    : primitives_(primitives), kv_(kv), key_peak_(PeakOfChannels(kv)) {
  KVLAB_CHECK(kv.format == KvFormat::kF32);
  KVLAB_CHECK_GE(kv.tokens, 1);
  for (const ScaleForm form : kScaleForms) {
    const int group = form == ScaleForm::kPerRow ? kv.head_dim : kQ8Group;
    const auto quantise = [&](const float* rows) {
      return Quantise(primitives, rows, kv.tokens, kv.head_dim, kv.stride,
                      group);
    };
    const auto i = static_cast<std::size_t>(form);
    keys_[i] = quantise(kv.keys);
    values_[i] = quantise(kv.values);
  }
}

/// A query, its q8 form, and what it gives exactly.
struct AccuracyHead::Query {
  std::vector<double> q;        // [d]
  Q8Rows q8;                    // one row
  std::vector<double> rounded;  // [d], what q8 stands for
  std::vector<double> scores;   // [tokens]
  std::vector<double> weights;  // [tokens]
};

QueryOutcome AccuracyHead::Measure(std::span<const float> query) const {
  const int d = kv_.head_dim;
  KVLAB_CHECK_EQ(static_cast<int>(query.size()), d);
  const double scale = AttentionScale(d);

  Query exact{.q = {query.begin(), query.end()},
              .q8 = Quantise(primitives_, query.data(), 1, d, d, kQ8Group),
              .rounded = std::vector<double>(query.size()),
              .scores = {},
              .weights = {}};
  Dequantise(exact.q8, 0, exact.rounded.data());
  for (int t = 0; t < kv_.tokens; ++t) {
    exact.scores.push_back(Dot(exact.q.data(), kv_.Key(t), d) * scale);
  }
  exact.weights = Softmax(exact.scores);

  QueryOutcome outcome;
  outcome.key_peak = key_peak_;
  outcome.exact.assign(query.size(), 0.0);
  for (int t = 0; t < kv_.tokens; ++t) {
    AddRow(exact.weights[t], kv_.Value(t), outcome.exact);
  }
  for (const ScaleForm form : kScaleForms) {
    MeasureForm(form, exact, outcome.arms.Of(form));
  }
  return outcome;
}

void AccuracyHead::MeasureForm(
    ScaleForm form, const Query& exact,
    std::array<ArmOutcome, kArms.size()>& arms) const {
  const int d = kv_.head_dim;
  const double scale = AttentionScale(d);
  const Q8Rows& keys = keys_[static_cast<std::size_t>(form)];
  const Q8Rows& values = values_[static_cast<std::size_t>(form)];
  const std::vector<double>& q = exact.q;
  std::vector<double> row(q.size());  // of K, then of V, rounded

  // The scores of each arm, later its weights. V only has the exact ones.
  std::array<std::vector<double>, kArms.size()> p;
  p.fill(exact.scores);
  for (int t = 0; t < kv_.tokens; ++t) {
    Dequantise(keys, t, row.data());

    // [bound]
    double of_key = 0;          // sum of s_K / 2 |q|_1 over the groups of K
    double of_query = 0;        // sum of s_q / 2 |K'|_1 over the groups of q
    double of_query_alone = 0;  // the same with K
    ForEachGroup(keys, t, [&](int i, int n, float s_K) {
      of_key += LargestRounding(s_K) * SumOfMagnitudes(&q[i], n);
    });
    ForEachGroup(exact.q8, 0, [&](int i, int n, float s_q) {
      of_query += LargestRounding(s_q) * SumOfMagnitudes(&row[i], n);
      of_query_alone +=
          LargestRounding(s_q) * SumOfMagnitudes(kv_.Key(t) + i, n);
    });
    // [bound]

    const auto take = [&](Arm arm, double dot, double bound) {
      const auto a = static_cast<std::size_t>(arm);
      p[a][t] = dot * scale;
      arms[a].scores.Add(p[a][t] - exact.scores[t], bound * scale);
    };
    const double* rounded = exact.rounded.data();
    take(Arm::kAll, Dot(rounded, row.data(), d), of_key + of_query);
    take(Arm::kKeys, Dot(q.data(), row.data(), d), of_key);
    take(Arm::kQuery, Dot(rounded, kv_.Key(t), d), of_query_alone);
  }

  for (std::size_t a = 0; a < arms.size(); ++a) {
    p[a] = Softmax(p[a]);
    arms[a].total_variation = TotalVariation(exact.weights, p[a]);
    arms[a].out.assign(q.size(), 0.0);
  }
  for (int t = 0; t < kv_.tokens; ++t) {
    Dequantise(values, t, row.data());
    for (const Arm arm : kArms) {
      const auto a = static_cast<std::size_t>(arm);
      if (arm == Arm::kAll || arm == Arm::kValues) {
        AddRow(p[a][t], row.data(), arms[a].out);
      } else {
        AddRow(p[a][t], kv_.Value(t), arms[a].out);
      }
    }
  }
}

// --- Many queries ------------------------------------------------------------

void OutputErrors::Add(std::span<const double> out,
                       std::span<const double> exact) {
  KVLAB_CHECK_EQ(out.size(), exact.size());
  Norm norm;
  for (const double x : exact) norm.Add(x);
  const double length = norm.Value() > 0 ? norm.Value() : 1;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double difference = std::fabs(out[i] - exact[i]);
    max_abs_ = std::max(max_abs_, difference);
    relative_.Add(difference / length, exact[i] / length);
  }
}

void ArmErrors::Add(std::span<const double> exact, const ArmOutcome& outcome) {
  output_.Add(outcome.out, exact);
  scores_.Merge(outcome.scores);
  ++queries_;
  const double cosine = Cosine(exact, outcome.out);
  cosine_sum_ += cosine;
  least_cosine_ = std::min(least_cosine_, cosine);
  variation_sum_ += outcome.total_variation;
  largest_variation_ = std::max(largest_variation_, outcome.total_variation);
}

void AccuracyErrors::Add(const QueryOutcome& outcome) {
  key_peak_ = std::max(key_peak_, outcome.key_peak);
  for (const ScaleForm form : kScaleForms) {
    for (const Arm arm : kArms) {
      arms_.At(form, arm).Add(outcome.exact, outcome.arms.At(form, arm));
    }
  }
}

std::int64_t AccuracyErrors::violations() const {
  std::int64_t sum = 0;
  for (const auto& form : arms_.cells) {
    for (const ArmErrors& arm : form) sum += arm.scores().violations;
  }
  return sum;
}

void LogitErrors::Add(std::span<const float> f32, std::span<const float> q8) {
  KVLAB_CHECK_EQ(f32.size(), q8.size());
  // log p = x - max - log(sum of exp(x - max))
  const auto log_total = [](std::span<const float> x) {
    const double max = *std::ranges::max_element(x);
    double sum = 0;
    for (const float logit : x) sum += ExpDouble(logit - max);
    return max + LogDouble(sum);
  };
  const double total_f32 = log_total(f32);
  const double total_q8 = log_total(q8);
  double kl = 0;
  for (std::size_t i = 0; i < f32.size(); ++i) {
    const double log_p = f32[i] - total_f32;
    kl += ExpDouble(log_p) * (log_p - (q8[i] - total_q8));
  }
  kl = std::max(kl, 0.0);  // of equal logits, rounding can leave -1e-17
  ++positions_;
  sum_ += kl;
  largest_ = std::max(largest_, kl);
  const int top = Argmax(f32), other = Argmax(q8);
  if (top == other) {
    ++same_top_;
  } else {
    const double lead =
        ExpDouble(f32[top] - total_f32) - ExpDouble(f32[other] - total_f32);
    largest_lead_lost_ = std::max(largest_lead_lost_, lead);
  }
}

}  // namespace kvlab
