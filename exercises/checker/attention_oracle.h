/// \file
/// What the checks of the attention exercises share: rows with chosen scores,
/// attention in double with the error that floats may add, and what comes out
/// of known mistakes, so that a failure can name one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/base/deterministic_math.h"
#include "common/base/error.h"
#include "exercises/checker/code_check.h"

namespace kvlab {

/// Random numbers of mean 0 and variance 1, nearly normal: sums of four uniform
/// ones. The same bits everywhere, which std::normal_distribution does not
/// give.
class RandomNumbers {
 public:
  explicit RandomNumbers(std::uint64_t seed) : random_(seed) {}

  float Next() {
    double sum = 0;  // of four in [0, 1): mean 2, variance 1/3
    for (int i = 0; i < 4; ++i) {
      sum += static_cast<double>(random_() >> 11) * 0x1p-53;
    }
    return static_cast<float>((sum - 2) * std::sqrt(3.0));
  }
  /// A whole number from `low` to `high`.
  int Between(int low, int high) {
    return low + static_cast<int>(random_() % (high - low + 1));
  }

 private:
  std::mt19937_64 random_;
};

/// A test with random inputs, which depend on the seed alone and not on what
/// other tests did.
template <typename Body>
void RandomTest(CodeCheck& check, const char* name, const char* lesson,
                const Body& body) {
  check.Test(name, lesson, [&check, &body] {
    RandomNumbers random(check.Seed());
    body(random);
  });
}

/// One query, and the keys and values of one KV head, rows of d without a gap.
template <typename T>
struct HeadRows {
  int d = 0;
  std::vector<T> query = {};   // [d]
  std::vector<T> keys = {};    // [n][d]
  std::vector<T> values = {};  // [n][d]

  int tokens() const { return static_cast<int>(values.size()) / d; }
};

inline HeadRows<double> Widened(const HeadRows<float>& rows) {
  return {.d = rows.d,
          .query = {rows.query.begin(), rows.query.end()},
          .keys = {rows.keys.begin(), rows.keys.end()},
          .values = {rows.values.begin(), rows.values.end()}};
}

inline std::vector<float> Drawn(RandomNumbers& random, std::size_t n) {
  std::vector<float> numbers(n);
  for (float& x : numbers) x = random.Next();
  return numbers;
}

/// Random rows, each key moved along the query until its score, (q . K[t]) /
/// sqrt(d), is scores[t] (but for the rounding of its elements).
inline HeadRows<float> RowsWithScores(RandomNumbers& random, int d,
                                      std::span<const double> scores) {
  const auto row = static_cast<std::size_t>(d);
  const std::size_t n = scores.size();
  HeadRows<float> rows{.d = d,
                       .query = Drawn(random, row),
                       .keys = Drawn(random, n * row),
                       .values = Drawn(random, n * row)};
  double square = 0;
  for (const float q : rows.query) square += double{q} * q;
  for (std::size_t t = 0; t < n; ++t) {
    float* key = &rows.keys[t * row];
    double dot = 0;
    for (std::size_t i = 0; i < row; ++i) dot += double{rows.query[i]} * key[i];
    const double along = (scores[t] * std::sqrt(d) - dot) / square;
    for (std::size_t i = 0; i < row; ++i) {
      key[i] = static_cast<float>(key[i] + along * rows.query[i]);
    }
  }
  return rows;
}

/// The rows of the tokens [first, last).
inline HeadRows<float> Part(const HeadRows<float>& rows, int first, int last) {
  const int d = rows.d;
  return {.d = d,
          .query = rows.query,
          .keys = {rows.keys.begin() + first * d, rows.keys.begin() + last * d},
          .values = {rows.values.begin() + first * d,
                     rows.values.begin() + last * d}};
}

/// n scores in equal steps from `first` to `last`.
inline std::vector<double> Steps(int n, double first, double last) {
  std::vector<double> scores(static_cast<std::size_t>(n), first);
  for (int t = 1; t < n; ++t) {
    scores[static_cast<std::size_t>(t)] += (last - first) * t / (n - 1);
  }
  return scores;
}

/// n random scores around `mean`.
inline std::vector<double> ScoresAround(RandomNumbers& random, int n,
                                        double mean) {
  std::vector<double> scores(static_cast<std::size_t>(n));
  for (double& score : scores) score = mean + random.Next();
  return scores;
}

/// What must come out, and how far from it floats may be.
struct ExactAttention {
  std::vector<double> scores;     // [n]
  double M = 0;                   // the largest score
  std::vector<double> weights;    // [n] exp(score - M), not divided by the sum
  std::vector<double> out;        // [d]
  std::vector<double> tolerance;  // [d]
  double score_error = 0;         // the most that a float score is off
  double weight_error = 0;        // the largest relative error of a weight
};

/// Attention in double. `roundings`: of each product in a float score.
///
/// The tolerance, with u = 2^-24, the largest relative error of one rounding:
/// - A score whose every product is rounded `roundings` times is off by at most
///   roundings * u * sum |q_i K_i| / sqrt(d). (The largest score too, but what
///   all weights share is divided out.)
/// - A weight is exp(score - M), or a product of such factors for each rescale
///   after it. The arguments are rounded: together M - score times u. Each
///   Exp is off by less than one ulp, 2u, and each product by u. At most n
///   rescales: 3 n u.
/// - n additions to S or acc: n u; each product w V, the scale of V, and the
///   division: 4 u in all.
/// So a weight has the relative error k_t of at most the sum of these, and out,
/// a mean of V with these weights, of sum p_t k_t (|V_t| + |out|), where p is
/// the weight's share. A tenth more covers the products of errors.
inline ExactAttention Exactly(const HeadRows<double>& rows, int roundings) {
  constexpr double kU = 0x1p-24;
  const auto d = static_cast<std::size_t>(rows.d);
  const auto n = static_cast<std::size_t>(rows.tokens());
  ExactAttention exact;
  std::vector<double> errors(n);
  for (std::size_t t = 0; t < n; ++t) {
    double dot = 0, magnitude = 0;
    for (std::size_t i = 0; i < d; ++i) {
      const double product = rows.query[i] * rows.keys[t * d + i];
      dot += product;
      magnitude += std::abs(product);
    }
    exact.scores.push_back(dot / std::sqrt(rows.d));
    errors[t] = roundings * kU * magnitude / std::sqrt(rows.d);
    exact.score_error = std::max(exact.score_error, errors[t]);
  }
  exact.M = *std::max_element(exact.scores.begin(), exact.scores.end());
  double S = 0;
  for (const double score : exact.scores) {
    exact.weights.push_back(ExpDouble(score - exact.M));
    S += exact.weights.back();
  }
  exact.out.assign(d, 0);
  for (std::size_t t = 0; t < n; ++t) {
    for (std::size_t i = 0; i < d; ++i) {
      exact.out[i] += exact.weights[t] / S * rows.values[t * d + i];
    }
  }
  exact.tolerance.assign(d, 0x1p-126);  // what underflows is lost
  for (std::size_t t = 0; t < n; ++t) {
    const double k = errors[t] + kU * (exact.M - exact.scores[t] +
                                       4 * static_cast<double>(n) + 4);
    exact.weight_error = std::max(exact.weight_error, 1.1 * k);
    for (std::size_t i = 0; i < d; ++i) {
      exact.tolerance[i] +=
          1.1 * k * exact.weights[t] / S *
          (std::abs(rows.values[t * d + i]) + std::abs(exact.out[i]));
    }
  }
  return exact;
}

/// A float score of d products: each product and each addition is rounded, so
/// is sqrt(d), its inverse, and the product with it.
inline ExactAttention Exactly(const HeadRows<float>& rows) {
  return Exactly(Widened(rows), rows.d + 3);
}

/// What a mistake would give, and what to say if just that was found.
struct Otherwise {
  std::string reason;
  std::vector<double> out;
};

/// How a running softmax can go wrong.
struct OnlineMistake {
  bool acc_kept = false;     // acc is not rescaled
  bool S_kept = false;       // S is not rescaled
  bool upside_down = false;  // the factor is exp(m - M)
};

/// The running softmax in double with a mistake; `sizes`: tokens of each tile.
/// It serves to recognise results, not to judge them.
inline std::vector<double> OnlineWith(OnlineMistake mistake,
                                      const HeadRows<double>& rows,
                                      std::span<const double> scores,
                                      std::span<const int> sizes) {
  const auto d = static_cast<std::size_t>(rows.d);
  std::vector<double> acc(d, 0);
  double M = 0, S = 0;
  std::size_t t = 0;
  for (const int size : sizes) {
    const std::size_t end = t + static_cast<std::size_t>(size);
    const double m =
        *std::max_element(scores.begin() + static_cast<std::ptrdiff_t>(t),
                          scores.begin() + static_cast<std::ptrdiff_t>(end));
    if (t == 0) {
      M = m;
    } else if (m > M) {
      const double c = ExpDouble(mistake.upside_down ? m - M : M - m);
      if (!mistake.S_kept) S *= c;
      for (double& x : acc) x *= mistake.acc_kept ? 1 : c;
      M = m;
    }
    for (; t < end; ++t) {
      const double w = ExpDouble(scores[t] - M);
      S += w;
      for (std::size_t i = 0; i < d; ++i) acc[i] += w * rows.values[t * d + i];
    }
  }
  for (double& x : acc) x /= S;
  return acc;
}

/// The mistakes that every running softmax invites, on these rows.
inline std::vector<Otherwise> CommonMistakes(const HeadRows<double>& rows,
                                             const ExactAttention& exact,
                                             std::span<const int> sizes) {
  std::vector<Otherwise> known;
  // M may be looked for in each tile, or follow token by token.
  const std::vector<int> ones(exact.scores.size(), 1);
  const auto add = [&](OnlineMistake mistake, const char* reason) {
    known.push_back({reason, OnlineWith(mistake, rows, exact.scores, sizes)});
    known.push_back({reason, OnlineWith(mistake, rows, exact.scores, ones)});
  };
  add({.acc_kept = true},
      "this is what comes out when S is rescaled and acc is not");
  add({.S_kept = true},
      "this is what comes out when acc is rescaled and S is not");
  add({.acc_kept = true, .S_kept = true},
      "this is what comes out when M grows and neither S nor acc is rescaled");
  add({.upside_down = true},
      "this is what comes out when the factor of the rescale is upside down: "
      "exp(M_old - M_new), at most 1");
  if (sizes.size() > 1) {
    const std::span<const int> fewer = sizes.first(sizes.size() - 1);
    known.push_back({StrCat("this is the result without the last ",
                            sizes.back(), " of the ", rows.tokens(), " tokens"),
                     OnlineWith({}, rows, exact.scores, fewer)});
  }
  std::vector<double> unscaled = exact.scores;
  for (double& score : unscaled) score *= std::sqrt(rows.d);
  known.push_back(
      {"this is what comes out when scores are not divided by "
       "sqrt(d)",
       OnlineWith({}, rows, unscaled, sizes)});
  return known;
}

/// Sizes of the tiles of n tokens, `tile` each but the last.
inline std::vector<int> TileSizes(int n, int tile) {
  std::vector<int> sizes;
  for (int t = 0; t < n; t += tile) sizes.push_back(std::min(tile, n - t));
  return sizes;
}

/// Runs expectations; the message of a failed one ends with `reason`.
template <typename Body>
void WithReason(const std::string& reason, const Body& expect) {
  try {
    expect();
  } catch (const FailedExpectation& failed) {
    if (reason.empty()) throw;
    throw FailedExpectation{StrCat(failed.message, "; ", reason)};
  }
}

/// `found` must be near exact.out. What is said of the worst element: expected,
/// found, and the reason, if what was found is what one of `known` gives, or
/// else `hint`, or `nan_hint` if it is no number.
inline void ExpectOutput(const CodeCheck& check, const std::string& what,
                         const ExactAttention& exact,
                         std::span<const float> found,
                         std::span<const Otherwise> known,
                         const std::string& hint = "",
                         const std::string& nan_hint = "") {
  check.ExpectEqual(StrCat(what, ": numbers in out"), exact.out.size(),
                    found.size());
  const auto excess = [&](std::span<const double> expected, std::size_t i) {
    const double difference = std::abs(found[i] - expected[i]);
    // A NaN is the worst.
    return difference <= 1e300 ? difference - exact.tolerance[i] : 1e300;
  };
  std::size_t worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (excess(exact.out, i) > excess(exact.out, worst)) worst = i;
  }
  if (excess(exact.out, worst) <= 0) return;
  std::string reason = std::isfinite(found[worst]) ? hint : nan_hint;
  for (const Otherwise& other : known) {
    bool same = true;
    for (std::size_t i = 0; i < found.size(); ++i) {
      same =
          same && excess(other.out, i) <= 1e-3 * std::abs(other.out[i]) + 1e-6;
    }
    if (same) reason = other.reason;
  }
  WithReason(reason, [&] {
    check.ExpectNear(StrCat(what, ": out"), static_cast<std::int64_t>(worst),
                     exact.out[worst], found[worst], exact.tolerance[worst]);
  });
}

}  // namespace kvlab
