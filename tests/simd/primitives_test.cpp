/// Every instruction set against the scalar reference, bit for bit.
#include "common/simd/primitives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/base/deterministic_math.h"
#include "common/base/error.h"
#include "common/base/float16.h"
#include "tests/require.h"
#include "tests/support/compare.h"

namespace kvlab {
namespace {

constexpr float kTiny = 1e-42f;  // subnormal

/// Inputs that tell wrong orders, fused or unfused products and flushed
/// subnormals apart.
std::vector<float> Adversarial(std::size_t n, int kind) {
  std::vector<float> x = RandomFloats(n, 100 + static_cast<unsigned>(kind));
  for (std::size_t i = 0; i < n; ++i) {
    switch (kind) {
      case 0:
        break;  // random
      case 1:
        x[i] = 1.0f;
        break;  // all equal
      case 2:
        x[i] = 0.0f;
        break;
      case 3:
        x[i] = -0.0f;
        break;
      case 4:
        x[i] *= 1e18f;
        break;  // products overflow
      case 5:
        x[i] *= kTiny;
        break;
      case 6:
        x[i] = i % 2 == 0 ? 1e8f + x[i] : -1e8f;
        break;  // cancellation
      case 7:
        x[i] = i == n / 2 ? 1e10f : 1e-3f * x[i];
        break;
    }
  }
  return x;
}
constexpr int kKinds = 8;

constexpr int kRaggedLengths[] = {1,  2,  7,  8,  9,  15, 16,  17,  31,  32,
                                  33, 47, 63, 64, 65, 96, 127, 128, 129, 1000};

/// Collects what differs. NaN equals NaN; all else by bits.
class Differences {
 public:
  void Same(float a, float b, const std::string& what) {
    ++compared_;
    if (std::isnan(a) && std::isnan(b)) return;
    if (std::bit_cast<std::uint32_t>(a) != std::bit_cast<std::uint32_t>(b)) {
      Add(StrCat(what, ": ", a, " against ", b));
    }
  }
  void Same(std::span<const float> a, std::span<const float> b,
            const std::string& what) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      Same(a[i], b[i], StrCat(what, " [", i, "]"));
    }
  }
  void True(bool condition, const std::string& what) {
    ++compared_;
    if (!condition) Add(what);
  }
  /// Empty if nothing differs and something was compared.
  std::string Report() const {
    if (compared_ == 0) return "nothing was compared";
    return count_ == 0 ? "" : StrCat(count_, " differences; first ", first_);
  }

 private:
  void Add(const std::string& text) {
    if (count_++ == 0) first_ = text;
  }
  int compared_ = 0;
  int count_ = 0;
  std::string first_;
};

const Primitives& Scalar() { return PrimitivesFor(Isa::kScalar); }

/// Sum of 16 lanes in the defined order, written down a second time.
float TreeSum(float (&lane)[16]) {
  for (int half = 8; half >= 1; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}

std::string CheckDot(const Primitives& p) {
  Differences d;
  for (int kind = 0; kind < kKinds; ++kind) {
    for (const int n : kRaggedLengths) {
      const auto a = Adversarial(n, kind);
      const auto b = RandomFloats(n, 7);
      float lane[16] = {};
      for (int i = 0; i < (n + 15) / 16 * 16; ++i) {
        lane[i % 16] =
            std::fma(i < n ? a[i] : 0.0f, i < n ? b[i] : 0.0f, lane[i % 16]);
      }
      d.Same(p.dot(a.data(), b.data(), n), TreeSum(lane),
             StrCat("kind ", kind, ", n ", n));
    }
  }
  return d.Report();
}

std::string CheckDotKeys(const Primitives& p) {
  Differences d;
  for (const int stride : {16, 32, 64, 80, 96, 128, 256}) {
    for (int tokens = 1; tokens <= kTileTokens; ++tokens) {
      for (int kind = 0; kind < kKinds; ++kind) {
        if (kind > 0 && tokens % 5 != 1) continue;
        const auto keys = Adversarial(std::size_t(tokens) * stride, kind);
        const int count = 1 + (tokens + kind) % 7;
        const auto queries = RandomFloats(std::size_t(count) * stride, 3);
        std::vector<float> scores(count * (tokens + 1), -1);
        std::vector<TileScores> heads;
        for (int h = 0; h < count; ++h) {
          heads.push_back(
              {queries.data() + h * stride, scores.data() + h * (tokens + 1)});
        }
        p.dot_keys(heads.data(), count, {keys.data(), tokens, stride}, 0.088f);
        for (int h = 0; h < count; ++h) {
          for (int t = 0; t < tokens; ++t) {
            d.Same(
                heads[h].scores[t],
                Scalar().dot(heads[h].query, keys.data() + t * stride, stride) *
                    0.088f,
                StrCat("head ", h, " of ", count, ", token ", t, " of ", tokens,
                       ", stride ", stride, ", kind ", kind));
          }
          d.Same(heads[h].scores[tokens], -1, "beyond the last score");
        }
      }
    }
  }
  return d.Report();
}

/// `count` heads with weights and sums of their own: run(heads) adds a tile;
/// expected(t) is the factor of row t's elements row(t, i) beside the weight.
template <typename Run, typename Weight, typename Element>
void CheckHeads(Differences& d, int count, int tokens, int stride, Run run,
                Weight weight_scale, Element element, const std::string& what) {
  std::vector<std::vector<float>> weights, acc, expected;
  for (int h = 0; h < count; ++h) {
    weights.push_back(RandomFloats(tokens, 40 + h));
    acc.push_back(RandomFloats(stride, 50 + h));
    expected.push_back(acc[h]);
    for (int t = 0; t < tokens; ++t) {
      const float w = weight_scale(weights[h][t], t);
      for (int i = 0; i < stride; ++i) {
        expected[h][i] = std::fma(w, element(t, i), expected[h][i]);
      }
    }
  }
  std::vector<TileSum> heads;
  for (int h = 0; h < count; ++h) {
    heads.push_back({weights[h].data(), acc[h].data()});
  }
  run(heads.data());
  for (int h = 0; h < count; ++h) {
    d.Same(acc[h], expected[h],
           StrCat(what, ", head ", h, " of ", count, ", tokens ", tokens,
                  ", stride ", stride));
  }
}

std::string CheckAccumulateValues(const Primitives& p) {
  Differences d;
  for (const int stride : {16, 32, 64, 80, 96, 128, 256}) {
    for (int tokens = 1; tokens <= kTileTokens; ++tokens) {
      for (int kind = 0; kind < kKinds; ++kind) {
        if (kind > 0 && tokens % 5 != 1) continue;
        const auto values = Adversarial(std::size_t(tokens) * stride, kind);
        const int count = 1 + (tokens + kind) % 5;
        CheckHeads(
            d, count, tokens, stride,
            [&](const TileSum* heads) {
              p.accumulate_values(heads, count,
                                  {values.data(), tokens, stride});
            },
            [](float w, int) { return w; },
            [&](int t, int i) { return values[t * stride + i]; },
            StrCat("kind ", kind));
      }
    }
  }
  return d.Report();
}

/// The q8 rule in plain words: codes and scale of x.
float QuantisePlainly(std::span<const float> x, std::vector<int>& codes) {
  float largest = 0;
  for (const float v : x) largest = std::max(largest, std::fabs(v));
  const float scale = largest / 127.0f;
  codes.assign(x.size(), 0);
  for (std::size_t i = 0; i < x.size() && scale != 0; ++i) {
    const float rounded = std::nearbyint(x[i] / scale);  // ties to even
    codes[i] = static_cast<int>(std::clamp(rounded, -127.0f, 127.0f));
  }
  return scale;
}

std::string CheckQuantise(const Primitives& p) {
  Differences d;
  const auto check = [&](std::span<const float> x, const std::string& what) {
    std::vector<std::int8_t> codes(x.size() + 1, 99);
    std::vector<int> expected;
    const float scale = QuantisePlainly(x, expected);
    const auto n = static_cast<int>(x.size());
    d.Same(p.quantise(x.data(), n, codes.data()), scale, what + ", scale");
    for (int i = 0; i < n; ++i) {
      d.True(codes[i] == expected[i],
             StrCat(what, ", element ", i, " (", x[i], "): code ",
                    int{codes[i]}, ", expected ", expected[i]));
    }
    d.True(codes[n] == 99, what + ": wrote beyond the row");
  };
  for (int kind = 0; kind < kKinds; ++kind) {
    for (const int n : kRaggedLengths) {
      check(Adversarial(n, kind), StrCat("kind ", kind, ", n ", n));
    }
  }
  // Halves on both sides of a vector's tail: ties go to the even code.
  for (const int n : {15, 16, 17, 31, 32, 33, 80}) {
    std::vector<float> x(n);
    for (int i = 0; i < n; ++i) {
      x[i] = (i % 2 == 0 ? 1.0f : -1.0f) * (0.5f + static_cast<float>(i % 13));
    }
    x[n / 2] = 127;
    check(x, StrCat("halves, n ", n));
  }
  // Scales that are tiny, subnormal (the quotient then passes 127) or zero.
  for (const float largest :
       {1e-37f, 1e-42f, 190 * 0x1p-149f, 100 * 0x1p-149f, 64 * 0x1p-149f,
        63 * 0x1p-149f, 0x1p-149f, 3.4e38f}) {
    for (const int n : {1, 16, 33}) {
      auto x = RandomFloats(n, 20, largest / 6);
      for (float& v : x) v = std::clamp(v, -largest, largest);
      x[n - 1] = -largest;
      check(x, StrCat("largest ", largest, ", n ", n));
    }
  }
  return d.Report();
}

/// A query and a run of keys or values in q8, any codes within +-127.
struct Q8Rows {
  std::vector<std::int8_t> query, codes;
  std::vector<float> query_scales, scales;
  int stride;

  Q8Rows(int tokens, int row_stride, int kind)
      : query(row_stride),
        codes(std::size_t(tokens) * row_stride),
        query_scales(row_stride / kQ8Group),
        scales(tokens),
        stride(row_stride) {
    std::mt19937 random(static_cast<unsigned>(kind) + 30);
    const auto code = [&] {
      if (kind == 1) return 127;
      if (kind == 2) return random() % 2 == 0 ? 127 : -127;
      if (kind == 3) return 0;
      return static_cast<int>(random() % 255) - 127;
    };
    for (std::int8_t& c : query) c = static_cast<std::int8_t>(code());
    for (std::int8_t& c : codes) c = static_cast<std::int8_t>(code());
    const float size = kind == 4 ? 1e-38f : kind == 5 ? 1e15f : 0.02f;
    query_scales = Positive(query_scales.size(), 31, size);
    scales = Positive(scales.size(), 32, size);
  }
  Q8Query view() const { return {query.data(), query_scales.data()}; }

  static std::vector<float> Positive(std::size_t n, unsigned seed, float size) {
    auto x = RandomFloats(n, seed, size);
    for (float& v : x) v = std::fabs(v);
    return x;
  }
};
constexpr int kQ8Kinds = 6;
constexpr int kQ8Strides[] = {32, 64, 96, 128, 160, 256};

/// Every step-th row: the same scores as of the rows one by one.
std::string CheckSteps(const Primitives& p) {
  Differences d;
  for (const int step : {2, 3, 4, 8}) {
    for (const int tokens : {1, 3, 4, 8, 15, 16, 17, 32}) {
      for (const int stride : {32, 96, 128}) {
        const int all = tokens * step;
        const auto keys = RandomFloats(std::size_t(all) * stride, 60);
        const Q8Rows q8(all, stride, 0);
        const auto queries = RandomFloats(std::size_t(3) * stride, 61);
        std::vector<float> scores(3 * tokens), scores_q8(3 * tokens);
        std::vector<TileScores> heads;
        std::vector<TileScoresQ8> heads_q8;
        for (int h = 0; h < 3; ++h) {
          heads.push_back(
              {queries.data() + h * stride, scores.data() + h * tokens});
          heads_q8.push_back({q8.view(), scores_q8.data() + h * tokens});
        }
        p.dot_keys(heads.data(), 3, {keys.data(), tokens, stride, step}, 0.5f);
        p.dot_keys_q8(heads_q8.data(), 3,
                      {q8.codes.data(), q8.scales.data(), tokens, stride, step},
                      0.5f);
        for (int h = 0; h < 3; ++h) {
          for (int t = 0; t < tokens; ++t) {
            const int row = t * step;
            const std::string what =
                StrCat("step ", step, ", row ", t, " of ", tokens, ", stride ",
                       stride, ", head ", h);
            d.Same(heads[h].scores[t],
                   Scalar().dot(heads[h].query, keys.data() + row * stride,
                                stride) *
                       0.5f,
                   what);
            float one = 0;
            const TileScoresQ8 head{q8.view(), &one};
            Scalar().dot_keys_q8(&head, 1,
                                 {q8.codes.data() + row * stride,
                                  q8.scales.data() + row, 1, stride},
                                 0.5f);
            d.Same(heads_q8[h].scores[t], one, what + ", q8");
          }
        }
      }
    }
  }
  return d.Report();
}

std::string CheckDotKeysQ8(const Primitives& p) {
  Differences d;
  for (const int stride : kQ8Strides) {
    for (int tokens = 1; tokens <= kTileTokens; ++tokens) {
      for (int kind = 0; kind < kQ8Kinds; ++kind) {
        const Q8Rows rows(tokens, stride, kind);
        // The query, and rows of keys as queries: each head has its own.
        const int count = 1 + (tokens + kind) % 3;
        std::vector<float> scores(count * (tokens + 1), -1);
        std::vector<TileScoresQ8> heads;
        for (int h = 0; h < count; ++h) {
          Q8Query query = rows.view();
          if (h > 0) query.codes = rows.codes.data() + (h % tokens) * stride;
          heads.push_back({query, scores.data() + h * (tokens + 1)});
        }
        p.dot_keys_q8(heads.data(), count,
                      {rows.codes.data(), rows.scales.data(), tokens, stride},
                      0.088f);
        for (int h = 0; h < count; ++h) {
          for (int t = 0; t < tokens; ++t) {
            float f = 0;
            for (int g = 0; g < stride / kQ8Group; ++g) {
              std::int64_t dot = 0;
              for (int i = g * kQ8Group; i < (g + 1) * kQ8Group; ++i) {
                dot += heads[h].query.codes[i] * rows.codes[t * stride + i];
              }
              const auto exact = static_cast<float>(dot);
              f = g == 0 ? exact * rows.query_scales[0]
                         : std::fma(exact, rows.query_scales[g], f);
            }
            d.Same(heads[h].scores[t], f * rows.scales[t] * 0.088f,
                   StrCat("head ", h, " of ", count, ", token ", t, " of ",
                          tokens, ", stride ", stride, ", kind ", kind));
          }
          d.Same(heads[h].scores[tokens], -1, "beyond the last score");
        }
      }
    }
  }
  // The largest dot there is: no 16-bit sum in between.
  const std::vector<std::int8_t> full(256, 127);
  const std::vector<float> ones(8, 1.0f);
  float score = 0;
  const TileScoresQ8 head{{full.data(), ones.data()}, &score};
  p.dot_keys_q8(&head, 1, {full.data(), ones.data(), 1, 256}, 1.0f);
  d.Same(score, 4129024.0f, "127 * 127 * 256");
  return d.Report();
}

std::string CheckAccumulateValuesQ8(const Primitives& p) {
  Differences d;
  for (const int stride : kQ8Strides) {
    for (int tokens = 1; tokens <= kTileTokens; ++tokens) {
      for (int kind = 0; kind < kQ8Kinds; ++kind) {
        const Q8Rows rows(tokens, stride, kind);
        const int count = 1 + (tokens + kind) % 5;
        CheckHeads(
            d, count, tokens, stride,
            [&](const TileSum* heads) {
              p.accumulate_values_q8(
                  heads, count,
                  {rows.codes.data(), rows.scales.data(), tokens, stride});
            },
            [&](float w, int t) { return w * rows.scales[t]; },
            [&](int t, int i) {
              return static_cast<float>(rows.codes[t * stride + i]);
            },
            StrCat("kind ", kind));
      }
    }
  }
  return d.Report();
}

std::string CheckMax(const Primitives& p) {
  Differences d;
  for (const int n : kRaggedLengths) {
    for (int where = 0; where < n; where += std::max(1, n / 7)) {
      auto x = RandomFloats(n, 6);
      x[where] = 50;
      d.Same(p.max(x.data(), n), 50, StrCat("n ", n, ", at ", where));
      for (float& v : x) v -= 1e6f;  // all far below zero
      x[where] = -2e5f;
      d.Same(p.max(x.data(), n), -2e5f, StrCat("low, n ", n, ", at ", where));
    }
    const std::vector<float> lowest(n, -std::numeric_limits<float>::infinity());
    d.Same(p.max(lowest.data(), n), lowest[0], "all -infinity");
  }
  return d.Report();
}

std::string CheckExpAndSum(const Primitives& p) {
  Differences d;
  for (int n = 1; n <= kTileTokens; ++n) {
    for (const float spread : {0.0f, 1.0f, 20.0f, 60.0f, 1e6f}) {
      const auto x = RandomFloats(n, 8, spread);
      const float max = Scalar().max(x.data(), n);
      auto w = x;
      const float sum = p.exp_and_sum(w.data(), n, max);
      float lane[16] = {};
      for (int t = 0; t < n; ++t) {
        d.Same(w[t], Exp(x[t] - max), StrCat("weight ", t, " of ", n));
        lane[t % 16] += Exp(x[t] - max);
      }
      d.Same(sum, TreeSum(lane), StrCat("sum of ", n));
    }
  }
  // Exp over all floats in steps, and its edges.
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits < 0x100000000ull; bits += 100003) {
    x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (const float edge : {-104.0f, -103.98f, -103.97f, -87.34f, 0.0f, -0.0f,
                           88.72f, 88.73f, 89.0f, 3e38f, -3e38f}) {
    x.push_back(edge);
  }
  x.resize((x.size() + kTileTokens - 1) / kTileTokens * kTileTokens);
  for (std::size_t i = 0; i < x.size(); i += kTileTokens) {
    std::vector<float> tile(x.begin() + i, x.begin() + i + kTileTokens);
    p.exp_and_sum(tile.data(), kTileTokens, 0.0f);
    for (int t = 0; t < kTileTokens; ++t) {
      d.Same(tile[t], Exp(x[i + t]), StrCat("exp(", x[i + t], ")"));
    }
  }
  // A NaN or an infinite score must spoil the sum on every instruction set, so
  // that it is refused everywhere.
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int n = 1; n <= kTileTokens; ++n) {
    for (int where = 0; where < n; ++where) {
      for (const float bad : {std::nanf(""), kInfinity}) {
        auto scores = RandomFloats(n, 9);
        scores[where] = bad;
        const float max = p.max(scores.data(), n);
        const float sum = p.exp_and_sum(scores.data(), n, max);
        d.True(!(std::isfinite(sum) && sum > 0),
               StrCat(bad, " at ", where, " of ", n, " gives sum ", sum));
      }
    }
  }
  return d.Report();
}

std::string CheckScale(const Primitives& p) {
  Differences d;
  for (const int n : kRaggedLengths) {
    auto a = RandomFloats(n, 10);
    auto b = a;
    p.scale(a.data(), n, 0.3f);
    for (float& v : b) v *= 0.3f;
    d.Same(a, b, StrCat("n ", n));
  }
  return d.Report();
}

std::string CheckSiluMul(const Primitives& p) {
  Differences d;
  for (const int n : kRaggedLengths) {
    for (const float spread : {1.0f, 30.0f, 200.0f}) {
      const auto gate = RandomFloats(n, 11, spread);
      const auto up = RandomFloats(n, 12);
      std::vector<float> out(n);
      p.silu_mul(gate.data(), up.data(), n, out.data());
      for (int i = 0; i < n; ++i) {
        d.Same(out[i], gate[i] / (1.0f + Exp(-gate[i])) * up[i],
               StrCat("silu(", gate[i], ")"));
      }
    }
  }
  return d.Report();
}

/// Values as bytes of a weight matrix; 16-bit types take the upper half of the
/// bits (for f16 that is another, but finite, number).
std::vector<std::byte> StoreAs(WeightType type, std::span<const float> values) {
  std::vector<std::byte> bytes;
  for (const float value : values) {
    auto bits = std::bit_cast<std::uint32_t>(value);
    if (type != WeightType::kF32) bits >>= 16;
    if (type == WeightType::kF16) bits &= 0xBBFF;
    const auto* p = reinterpret_cast<const std::byte*>(&bits);
    bytes.insert(bytes.end(), p, p + (type == WeightType::kF32 ? 4 : 2));
  }
  return bytes;
}

std::string CheckMatmul(const Primitives& p) {
  Differences d;
  for (const WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
    // Beyond the blocks that an implementation may work in: 512 columns, 48
    // tokens, 8 rows.
    for (const int cols : {1, 15, 16, 48, 50, 128, 129, 512, 1029}) {
      for (const int tokens : {1, 2, 3, 4, 7, 32, 48, 101}) {
        constexpr int kRows = 13;
        if (cols > 129 && tokens == 32) continue;
        const auto bytes =
            StoreAs(type, RandomFloats(std::size_t(kRows) * cols, 13));
        std::vector<float> wide(std::size_t(kRows) * cols);
        for (std::size_t i = 0; i < wide.size(); ++i) {
          const std::byte* at = bytes.data() + i * bytes.size() / wide.size();
          std::uint16_t half = 0;
          std::memcpy(&half, at, 2);
          if (type == WeightType::kF32) std::memcpy(&wide[i], at, 4);
          if (type == WeightType::kF16) wide[i] = ToFloat(Float16{half});
          if (type == WeightType::kBF16) wide[i] = ToFloat(BFloat16{half});
        }
        const WeightMatrix w{bytes.data(), type, kRows, cols};
        const auto x = RandomFloats(std::size_t(tokens) * cols, 14);
        const TokenRows in{x.data(), tokens, cols, cols};
        std::vector<float> out(std::size_t(tokens) * kRows, -7);
        p.matmul(in, w, 0, 3, out.data(), kRows);
        p.matmul(in, w, 3, kRows, out.data(), kRows);
        for (int t = 0; t < tokens; ++t) {
          for (int r = 0; r < kRows; ++r) {
            d.Same(out[t * kRows + r],
                   Scalar().dot(&wide[r * cols], &x[t * cols], cols),
                   StrCat("cols ", cols, ", token ", t, ", row ", r));
          }
        }
      }
    }
  }
  // A 16-bit weight is widened exactly: every finite pattern.
  for (const WeightType type : {WeightType::kF16, WeightType::kBF16}) {
    for (unsigned pattern = 0; pattern < 0x10000; ++pattern) {
      const auto half = static_cast<std::uint16_t>(pattern);
      const float exact = type == WeightType::kF16 ? ToFloat(Float16{half})
                                                   : ToFloat(BFloat16{half});
      if (!std::isfinite(exact)) continue;
      std::uint16_t row[16] = {};
      float x[16] = {};
      row[pattern % 16] = half;
      x[pattern % 16] = 1;
      float out = 0;
      p.matmul({x, 1, 16, 16}, {row, type, 1, 16}, 0, 1, &out, 1);
      d.True(out == exact, StrCat("pattern ", pattern, " reads as ", out));
    }
  }
  return d.Report();
}

class PrimitivesTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!CpuHas(GetParam())) {
      KVLAB_SKIP_OR_FAIL(std::string(IsaName(GetParam())),
                         "this CPU does not have it");
    }
  }
  const Primitives& isa() const { return PrimitivesFor(GetParam()); }
};

TEST_P(PrimitivesTest, IsTheTableItSays) { EXPECT_EQ(isa().isa, GetParam()); }
TEST_P(PrimitivesTest, Dot) { EXPECT_EQ(CheckDot(isa()), ""); }
TEST_P(PrimitivesTest, DotKeys) { EXPECT_EQ(CheckDotKeys(isa()), ""); }
TEST_P(PrimitivesTest, EveryStepthKey) { EXPECT_EQ(CheckSteps(isa()), ""); }
TEST_P(PrimitivesTest, AccumulateValues) {
  EXPECT_EQ(CheckAccumulateValues(isa()), "");
}
TEST_P(PrimitivesTest, Quantise) { EXPECT_EQ(CheckQuantise(isa()), ""); }
TEST_P(PrimitivesTest, DotKeysQ8) { EXPECT_EQ(CheckDotKeysQ8(isa()), ""); }
TEST_P(PrimitivesTest, AccumulateValuesQ8) {
  EXPECT_EQ(CheckAccumulateValuesQ8(isa()), "");
}
TEST_P(PrimitivesTest, Max) { EXPECT_EQ(CheckMax(isa()), ""); }
TEST_P(PrimitivesTest, ExpAndSum) { EXPECT_EQ(CheckExpAndSum(isa()), ""); }
TEST_P(PrimitivesTest, Scale) { EXPECT_EQ(CheckScale(isa()), ""); }
TEST_P(PrimitivesTest, SiluMul) { EXPECT_EQ(CheckSiluMul(isa()), ""); }
TEST_P(PrimitivesTest, Matmul) { EXPECT_EQ(CheckMatmul(isa()), ""); }

/// Proven active: each check sees a slightly wrong primitive in its slot. The
/// wrong ones are the mistakes that are easy to make.
TEST_P(PrimitivesTest, ChecksSeeAWrongPrimitive) {
  static const Primitives* right;
  right = &isa();
  Primitives wrong = *right;

  wrong.dot = [](const float* a, const float* b, std::int64_t n) {
    float sum = 0;  // one lane instead of 16
    for (std::int64_t i = 0; i < n; ++i) sum = std::fma(a[i], b[i], sum);
    return sum;
  };
  EXPECT_NE(CheckDot(wrong), "");
  wrong.dot_keys = [](const TileScores* heads, int count, const KvRows& keys,
                      float scale) {  // scaled before, not after
    for (int h = 0; h < count; ++h) {
      std::vector<float> scaled(heads[h].query, heads[h].query + keys.stride);
      for (float& x : scaled) x *= scale;
      const TileScores head{scaled.data(), heads[h].scores};
      right->dot_keys(&head, 1, keys, 1.0f);
    }
  };
  EXPECT_NE(CheckDotKeys(wrong), "");
  wrong.accumulate_values = [](const TileSum* heads, int count,
                               const KvRows& values) {  // last token first
    for (int h = 0; h < count; ++h) {
      for (int t = values.tokens - 1; t >= 0; --t) {
        const TileSum one{heads[h].weights + t, heads[h].acc};
        right->accumulate_values(
            &one, 1, {values.data + t * values.stride, 1, values.stride});
      }
    }
  };
  EXPECT_NE(CheckAccumulateValues(wrong), "");
  wrong.quantise = [](const float* x, int n, std::int8_t* codes) {
    const float scale = right->quantise(x, n, codes);  // halves away from zero
    for (int i = 0; i < n && scale != 0; ++i) {
      codes[i] = static_cast<std::int8_t>(
          std::clamp(std::round(x[i] / scale), -127.0f, 127.0f));
    }
    return scale;
  };
  EXPECT_NE(CheckQuantise(wrong), "");
  wrong.dot_keys_q8 = [](const TileScoresQ8* heads, int count,
                         const KvRowsQ8& keys, float scale) {  // scaled first
    std::vector<float> scaled(keys.scales,
                              keys.scales + keys.tokens * keys.step);
    for (float& x : scaled) x *= scale;
    KvRowsQ8 other = keys;
    other.scales = scaled.data();
    right->dot_keys_q8(heads, count, other, 1.0f);
  };
  EXPECT_NE(CheckDotKeysQ8(wrong), "");
  Primitives dense = *right;
  dense.dot_keys = [](const TileScores* heads, int count, const KvRows& keys,
                      float scale) {  // reads the rows in between
    right->dot_keys(heads, count, {keys.data, keys.tokens, keys.stride}, scale);
  };
  EXPECT_NE(CheckSteps(dense), "");
  dense = *right;
  dense.dot_keys_q8 = [](const TileScoresQ8* heads, int count,
                         const KvRowsQ8& keys,
                         float scale) {  // scales of the rows in between
    KvRowsQ8 one = keys;
    for (one.tokens = 1;
         one.codes < keys.codes + keys.tokens * keys.step * keys.stride;
         one.codes += keys.step * keys.stride, ++one.scales) {
      std::vector<TileScoresQ8> at(heads, heads + count);
      for (TileScoresQ8& head : at) head.scores += one.scales - keys.scales;
      right->dot_keys_q8(at.data(), count, one, scale);
    }
  };
  EXPECT_NE(CheckSteps(dense), "");
  wrong.accumulate_values_q8 =
      [](const TileSum* heads, int count,
         const KvRowsQ8& v) {  // code times scale first
        for (int h = 0; h < count; ++h) {
          for (int t = 0; t < v.tokens; ++t) {
            for (int i = 0; i < v.stride; ++i) {
              const auto code = static_cast<float>(v.codes[t * v.stride + i]);
              heads[h].acc[i] = std::fma(heads[h].weights[t],
                                         code * v.scales[t], heads[h].acc[i]);
            }
          }
        }
      };
  EXPECT_NE(CheckAccumulateValuesQ8(wrong), "");
  wrong.max = [](const float* x, int n) {  // forgets the ragged tail
    return right->max(x, n < kLanes ? n : n / kLanes * kLanes);
  };
  EXPECT_NE(CheckMax(wrong), "");
  wrong.exp_and_sum = [](float* x, int n, float max) {  // libm's exp
    float sum = 0;
    for (int t = 0; t < n; ++t) sum += x[t] = std::exp(x[t] - max);
    return sum;
  };
  EXPECT_NE(CheckExpAndSum(wrong), "");
  wrong.scale = [](float* x, int n, float factor) {  // n rounded down
    right->scale(x, n / 8 * 8, factor);
  };
  EXPECT_NE(CheckScale(wrong), "");
  wrong.silu_mul = [](const float* gate, const float* up, std::int64_t n,
                      float* out) {  // another order of the two products
    for (std::int64_t i = 0; i < n; ++i) {
      out[i] = gate[i] * up[i] / (1.0f + Exp(-gate[i]));
    }
  };
  EXPECT_NE(CheckSiluMul(wrong), "");
  wrong.matmul = [](const TokenRows& x, const WeightMatrix& w,
                    std::int64_t first, std::int64_t last, float* out,
                    std::int64_t out_stride) {  // drops the last column
    std::vector<float> shorter(x.data, x.data + x.tokens * x.stride);
    for (int t = 0; t < x.tokens; ++t) shorter[t * x.stride + x.cols - 1] = 0;
    TokenRows rows = x;
    rows.data = shorter.data();
    right->matmul(rows, w, first, last, out, out_stride);
  };
  EXPECT_NE(CheckMatmul(wrong), "");
}

INSTANTIATE_TEST_SUITE_P(Isa, PrimitivesTest,
                         testing::ValuesIn(BuiltIsas().begin(),
                                           BuiltIsas().end()),
                         [](const auto& test) {
                           return std::string(IsaName(test.param));
                         });

TEST(ParseIsa, KnowsNamesAndNeverFallsBack) {
  EXPECT_EQ(ParseIsa("scalar"), Isa::kScalar);
  try {
    ParseIsa("sse9");
    FAIL() << "accepted sse9";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), kExitUsage);
    EXPECT_NE(
        std::string(error.what()).find("known are scalar, avx2, avx512, "),
        std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(CpuHas(BestIsa()));
  EXPECT_EQ(PrimitivesFor(BestIsa()).isa, BestIsa());
}

}  // namespace
}  // namespace kvlab
