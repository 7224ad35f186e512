#include <array>

#include "exercises/07_single_pass_q8/single_pass_q8.h"
#include "exercises/checker/attention_oracle.h"
#include "exercises/checker/code_check.h"

namespace kvlab {
namespace {

constexpr const char* kLesson = "day09_kv_q8/README.md#the-stages";
constexpr const char* kRounding =
    "day09_kv_q8/README.md#how-wrong-can-a-score-be";
constexpr double kU = 0x1p-24;  // one rounding of a float, relative
// Larger in magnitude than any drawn number.
constexpr float kLargest = -6.5f;
static_assert(kLargest / 127 != kLargest * (1.0f / 127));

/// The rule of the course for a row, or a group of a query.
float Quantised(std::span<const float> x, std::vector<std::int8_t>& codes) {
  float largest = 0;
  for (const float element : x) largest = std::max(largest, std::abs(element));
  const float scale = largest / 127.0f;
  for (const float element : x) {
    const float code = scale == 0 ? 0 : std::nearbyint(element / scale);
    codes.push_back(static_cast<std::int8_t>(std::clamp(code, -127.f, 127.f)));
  }
  return scale;
}

QueryCodes QuantisedInGroups(std::span<const float> query) {
  QueryCodes result;
  for (std::size_t first = 0; first < query.size(); first += 32) {
    const std::size_t size = std::min<std::size_t>(32, query.size() - first);
    result.scales.push_back(
        Quantised(query.subspan(first, size), result.codes));
  }
  return result;
}

CodeRows QuantisedRows(int d, std::span<const float> rows) {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
  for (std::size_t i = 0; i < rows.size(); i += d) {
    scales.push_back(Quantised(rows.subspan(i, d), codes));
  }
  return CodeRows(d, std::move(codes), std::move(scales));
}

/// `n` codes within +-127.
std::vector<std::int8_t> DrawnCodes(RandomNumbers& random, int n) {
  std::vector<std::int8_t> codes;
  for (int i = 0; i < n; ++i) {
    codes.push_back(static_cast<std::int8_t>(random.Between(-127, 127)));
  }
  return codes;
}

/// A query whose groups differ in size as much as real ones do.
std::vector<float> DrawnQuery(RandomNumbers& random, int d) {
  std::vector<float> query = Drawn(random, d);
  float size = 1;
  for (int i = 0; i < d; ++i) {
    if (i % 32 == 0) size = std::ldexp(1.0f, random.Between(-3, 0));
    query[i] *= size;
  }
  return query;
}

/// Scales and codes of the student's quantiser against the rule.
void ExpectScales(const CodeCheck& check, std::span<const float> query) {
  const QueryCodes expected = QuantisedInGroups(query);
  const QueryCodes found = QuantiseQuery(query);
  const std::string what = StrCat("d = ", query.size(), ": ");
  check.ExpectEqual(what + "number of scales (one for 32 elements, or fewer)",
                    expected.scales.size(), found.scales.size());
  std::vector<std::int8_t> unused;
  const float whole = Quantised(query, unused);
  for (std::size_t j = 0; j < found.scales.size(); ++j) {
    const float e = expected.scales[j], f = found.scales[j];
    const auto group = query.subspan(32 * j).first(
        std::min<std::size_t>(32, query.size() - 32 * j));
    const float positive = *std::max_element(group.begin(), group.end());
    std::string reason;
    if (std::abs(f - e) <= 4e-7 * e) {
      reason = "only the rounding differs: the rule is max|x| / 127";
    } else if (f == whole && found.scales.size() > 1) {
      reason =
          "this is the scale of the whole query; each group has the largest of "
          "its own elements";
    } else if (std::abs(f - e * 127) <= 1e-6 * f) {
      reason = "this is max|x|; the scale is that / 127";
    } else if (std::abs(f - e * (127.0f / 128)) <= 1e-6 * f) {
      reason =
          "this is max|x| / 128; codes reach to 127, so it is max|x| / 127";
    } else if (f == positive / 127.0f) {
      reason =
          "this is the largest element / 127, but a negative one is larger in "
          "magnitude: max|x|";
    }
    WithReason(reason, [&] {
      check.ExpectEqualAt(what + "scale of group", static_cast<std::int64_t>(j),
                          e, f);
    });
  }
}

void ExpectCodes(const CodeCheck& check, std::span<const float> query) {
  const QueryCodes expected = QuantisedInGroups(query);
  const QueryCodes found = QuantiseQuery(query);
  check.ExpectEqual(StrCat("d = ", query.size(), ": number of codes"),
                    expected.codes.size(), found.codes.size());
  for (std::size_t i = 0; i < found.codes.size(); ++i) {
    const float scale = expected.scales[i / 32];
    const float quotient = scale == 0 ? 0 : query[i] / scale;
    const int e = expected.codes[i], f = found.codes[i];
    std::string reason;
    if (std::abs(quotient) <= 127 && std::isinf(1 / scale) &&
        f == std::copysign(127, quotient)) {
      reason =
          ": the reciprocal of so small a scale, 1 / scale or 127 / max|x|, "
          "overflows to infinity; divide x by the scale";
    } else if (std::abs(quotient) > 127.5f) {
      reason = ": codes stay within +-127";
    } else if (std::abs(quotient - std::trunc(quotient)) == 0.5f) {
      reason = ", halfway: the even one is taken";
    } else if (f == static_cast<int>(quotient)) {
      reason = ": a code is the nearest integer, and a cast cuts off";
    }
    WithReason(StrCat("x / scale is ", quotient, reason), [&] {
      check.ExpectEqualAt(StrCat("d = ", query.size(), ": code"),
                          static_cast<std::int64_t>(i), e, f);
    });
  }
}

/// A wrong score, and what it comes from.
struct OtherScore {
  std::string reason;
  double score;
};

/// What an integer sum becomes in a type of fewer bits.
template <typename T>
double Wrapped(int dot) {
  return static_cast<T>(static_cast<std::uint32_t>(dot));
}

/// The student's score of token t against double. Each group's dot is exact;
/// its product with a scale and its addition are rounded, then come 1/sqrt(d)
/// (two roundings) and two products: 2 groups + 4 roundings.
void ExpectScore(const CodeCheck& check, const std::string& what,
                 const QueryCodes& query, const CodeRows& keys, int t) {
  const int d = keys.d();
  const int groups = (d + 31) / 32;
  std::vector<int> dots(groups);
  const std::span<const std::int8_t> key = keys.Codes(t);
  for (int i = 0; i < d; ++i) dots[i / 32] += query.codes[i] * key[i];

  const double by_sqrt = 1 / std::sqrt(d);
  const double size = keys.Scale(t) * by_sqrt;
  const auto sum = [&](auto term) {
    double total = 0;
    for (int j = 0; j < groups; ++j) total += term(j);
    return total;
  };
  const double magnitude =
      sum([&](int j) { return std::abs(dots[j]) * double{query.scales[j]}; });
  const double exact =
      sum([&](int j) { return dots[j] * double{query.scales[j]}; });
  const double tolerance =
      (2 * groups + 4) * kU * magnitude * std::abs(size) + 0x1p-126;

  std::vector<OtherScore> others = {
      {"no group's scale was put back",
       size * sum([&](int j) { return dots[j]; })},
      {"every group got the scale of group 0",
       size * sum([&](int j) { return dots[j] * double{query.scales[0]}; })},
      {"each group got the scale of the next",
       size * sum([&](int j) {
         return dots[j] * double{query.scales[(j + 1) % groups]};
       })},
      {"the last group is missing",
       size * (exact - dots[groups - 1] * double{query.scales[groups - 1]})},
      {"the sum is kept in 8 bits, and overflows",
       size * sum([&](int j) {
         return Wrapped<std::int8_t>(dots[j]) * query.scales[j];
       })},
      {"the sum is kept in 16 bits, and overflows",
       size * sum([&](int j) {
         return Wrapped<std::int16_t>(dots[j]) * query.scales[j];
       })},
      {"it is not divided by sqrt(d)", exact * keys.Scale(t)},
      {"the scale of the key is missing", exact * by_sqrt},
      {"the scales of query and key are missing",
       by_sqrt * sum([&](int j) { return dots[j]; })},
  };
  for (int other = 0; other < keys.tokens(); ++other) {
    others.push_back({StrCat("the scale of the key is that of token ", other),
                      exact * by_sqrt * keys.Scale(other)});
  }
  const float found = Score(query, keys, t);
  std::string reason;
  for (const OtherScore& other : others) {
    if (reason.empty() && std::abs(found - other.score) <= tolerance &&
        std::abs(exact * size - other.score) > tolerance) {
      reason = other.reason;
    }
  }
  WithReason(reason, [&] {
    check.ExpectNear(what + ": score", t, exact * size, found, tolerance);
  });
}

/// A query and q8 rows, and the same as numbers for the oracle.
struct Q8Problem {
  std::vector<float> query;
  CodeRows keys, values;
  HeadRows<double> numbers;
};

/// Rows whose scales differ from token to token.
Q8Problem DrawnProblem(RandomNumbers& random, int n, int d) {
  const auto drawn_rows = [&random, n, d] {
    std::vector<float> rows = Drawn(random, static_cast<std::size_t>(n) * d);
    for (int t = 0; t < n; ++t) {
      const float size = std::ldexp(1.0f, random.Between(-2, 0));
      for (int i = 0; i < d; ++i) rows[t * d + i] *= size;
    }
    return QuantisedRows(d, rows);
  };
  const auto widened = [n](const CodeRows& rows) {
    std::vector<double> numbers;
    for (int t = 0; t < n; ++t) {
      for (const int code : rows.Codes(t)) {
        numbers.push_back(double{rows.Scale(t)} * code);
      }
    }
    return numbers;
  };
  std::vector<float> query = DrawnQuery(random, d);
  CodeRows keys = drawn_rows();
  CodeRows values = drawn_rows();
  const QueryCodes codes = QuantisedInGroups(query);
  HeadRows<double> numbers{
      .d = d, .keys = widened(keys), .values = widened(values)};
  for (int i = 0; i < d; ++i) {
    numbers.query.push_back(double{codes.scales[i / 32]} * codes.codes[i]);
  }
  return {std::move(query), std::move(keys), std::move(values),
          std::move(numbers)};
}

/// The values mixed with weights a, divided by the sum of weights b.
std::vector<double> Mixed(const CodeRows& values, const std::vector<double>& a,
                          const std::vector<double>& b) {
  std::vector<double> out(values.d(), 0);
  double S = 0;
  for (int t = 0; t < values.tokens(); ++t) {
    S += b[t];
    for (int i = 0; i < values.d(); ++i) out[i] += a[t] * values.Codes(t)[i];
  }
  for (double& x : out) x /= S;
  return out;
}

void Tests(CodeCheck& check) {
  const auto test = [&check](const char* name, const char* lesson,
                             const auto& body) {
    RandomTest(check, name, lesson, body);
  };

  test("query_scales", kRounding, [&](RandomNumbers& random) {
    // The largest is negative, and its quotient by 127 is not its product with
    // 1/127, which for most numbers is the same float.
    std::vector<float> query = Drawn(random, 32);
    query[random.Between(0, 31)] = kLargest;
    ExpectScales(check, query);
    for (const int d : {32, 64, 80, 128}) {
      ExpectScales(check, DrawnQuery(random, d));
    }
  });

  test("query_codes", kRounding, [&](RandomNumbers& random) {
    for (const int d : {32, 64, 80, 128}) {
      ExpectCodes(check, DrawnQuery(random, d));
    }
  });

  test("ties", kRounding, [&](RandomNumbers& random) {
    // The largest is 127 of some power of two, so all quotients are exact.
    const float unit = std::ldexp(1.0f, random.Between(-8, 8));
    std::vector<float> query(32, 127 * unit);
    for (int i = 1; i < 32; ++i) {
      query[i] = (static_cast<float>(random.Between(-127, 126)) + 0.5f) * unit;
    }
    query[1] = 2.5f * unit;
    query[2] = -0.5f * unit;
    ExpectCodes(check, query);
  });

  test("limits", kRounding, [&](RandomNumbers& random) {
    // So small that the scale, a whole multiple of 2^-149, is rounded down.
    constexpr float kTiny = 0x1p-149f;
    std::vector<float> query = Drawn(random, 80);
    std::fill_n(query.begin(), 32, 0.0f);
    for (int i = 32; i < 64; ++i) {
      query[i] = static_cast<float>(random.Between(-190, 190)) * kTiny;
    }
    query[33] = 190 * kTiny;
    query[34] = -190 * kTiny;
    query[35] = -128 * kTiny;
    ExpectScales(check, query);
    ExpectCodes(check, query);
  });

  test("score_integers", kLesson, [&](RandomNumbers& random) {
    // Codes at their largest: a group's dot is up to 32 * 127 * 127.
    const QueryCodes query{std::vector<std::int8_t>(128, 127), {1, 1, 1, 1}};
    std::vector<std::int8_t> codes(2 * 128, 127);
    for (int i = 128; i < 256; ++i) {
      codes[i] = static_cast<std::int8_t>(random.Between(100, 127));
    }
    const CodeRows keys(128, codes, {1, 1});
    for (int t = 0; t < 2; ++t) {
      ExpectScore(check, "large codes, all scales 1", query, keys, t);
    }
  });

  test("score_groups", kLesson, [&](RandomNumbers& random) {
    for (const int d : {64, 80, 128}) {
      QueryCodes query{DrawnCodes(random, d), {}};
      for (int j = 0; j < (d + 31) / 32; ++j) {
        query.scales.push_back(std::ldexp(1 + 0.1f * random.Next(), j));
      }
      const CodeRows keys(d, DrawnCodes(random, d), {1});
      ExpectScore(check, StrCat("d = ", d, ", the key's scale is 1"), query,
                  keys, 0);
    }
  });

  test("score_key_scale", kLesson, [&](RandomNumbers& random) {
    const QueryCodes query{DrawnCodes(random, 64), {0.5f, 0.25f}};
    std::vector<float> scales;
    for (int t = 0; t < 5; ++t) {
      scales.push_back(std::ldexp(1 + 0.1f * random.Next(), t - 3));
    }
    const CodeRows keys(64, DrawnCodes(random, 5 * 64), scales);
    for (const int t : {3, 0, 4, 1, 2}) {
      ExpectScore(check, "five keys of different scales", query, keys, t);
    }
  });

  test("value_scale", kLesson, [&](RandomNumbers& random) {
    // Keys of zeros: all scores are 0, all weights 1, and out is the mean of
    // the values.
    const int n = 40, d = 64;
    Q8Problem problem = DrawnProblem(random, n, d);
    std::fill(problem.numbers.keys.begin(), problem.numbers.keys.end(), 0.0);
    std::vector<float> key_scales;
    std::vector<double> ones(n, 1), value_scales;
    for (int t = 0; t < n; ++t) {
      key_scales.push_back(problem.keys.Scale(t));
      value_scales.push_back(problem.values.Scale(t));
    }
    const CodeRows keys(d, std::vector<std::int8_t>(n * d, 0), key_scales);
    const std::vector<double> by_key(key_scales.begin(), key_scales.end());
    std::vector<double> before = value_scales;
    std::copy(value_scales.begin(), value_scales.end() - 1, before.begin() + 1);
    const std::array known = {
        Otherwise{"the scale of the value is missing",
                  Mixed(problem.values, ones, ones)},
        Otherwise{"the scale of the key was taken for that of the value",
                  Mixed(problem.values, by_key, ones)},
        Otherwise{"every value got the scale of token 0",
                  Mixed(problem.values, std::vector<double>(n, value_scales[0]),
                        ones)},
        Otherwise{"the scale of the value is that of the token before",
                  Mixed(problem.values, before, ones)},
        Otherwise{"the scale of the value got into S too; S is the sum of the "
                  "weights alone",
                  Mixed(problem.values, value_scales, value_scales)}};
    ExpectOutput(check, "40 keys of zeros: the mean of the values",
                 Exactly(problem.numbers, 0),
                 SinglePass(problem.query, keys, problem.values), known);
  });

  test("one_look", kLesson, [&](RandomNumbers& random) {
    const Q8Problem problem = DrawnProblem(random, 100, 64);
    const CodeRows keys = problem.keys, values = problem.values;
    std::vector<int> before;
    for (int t = 0; t < 100; ++t) {
      before.push_back(keys.Looks(t) + values.Looks(t));
    }
    SinglePass(problem.query, keys, values);
    for (int t = 0; t < 100; ++t) {
      check.ExpectEqualAt("looks at the rows K and V of token", t, 2,
                          keys.Looks(t) + values.Looks(t) - before[t]);
    }
  });

  test("every_length", kLesson, [&](RandomNumbers& random) {
    for (const int n : {1, 31, 32, 33, 63, 64, 127, 128, 129, 1000}) {
      for (const int d : {32, 64, 80, 128}) {
        const Q8Problem problem = DrawnProblem(random, n, d);
        // As in ExpectScore.
        const int roundings = 2 * ((d + 31) / 32) + 4;
        ExpectOutput(check, StrCat("n = ", n, ", d = ", d),
                     Exactly(problem.numbers, roundings),
                     SinglePass(problem.query, problem.keys, problem.values),
                     {});
      }
    }
  });
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  return kvlab::CodeCheckMain(argc, argv, kvlab::Tests);
}
