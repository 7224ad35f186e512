/// \file
/// Every block primitive, written once over a vector of 16 floats.
///
/// `V` is such a vector: scalar.cpp makes it from an array, avx2.cpp from two
/// registers, and so on. V offers
///
///     V::Zero()  V::Set(x)  V::Load(p)  V::LoadPartial(p, n)  v.Store(p)
///     V::LoadBf16(p)  V::LoadF16(p)            16 elements, widened to f32
///     V::LoadInt8(p)  V::LoadInt32(p)          the same from integers
///     v.StoreInt8(p)                           whole numbers within +-127
///     a + b  a * b  a / b                      IEEE, lane by lane
///     V::Fma(a, b, c)                          a * b + c with one rounding
///     V::Max(a, b)  V::Min(a, b)               a > b ? a : b, a < b ? a : b
///     V::Abs(a)
///     V::Exp(x)                                the steps of Exp(float)
///     v.Sum()                                  lanes i and i+8, then +4, +2,
///                                              +1
///     V::DotRows(q, rows, groups, sums)        exact integer dots, see
///                                              DotKeysQ8
///
/// The defined order of a reduction over n elements: lane i takes elements i,
/// i + 16, ... in ascending order, a last block of fewer than 16 is filled up
/// with zeros, and Sum() adds the lanes as a tree. It is the same on every
/// instruction set because it is this code.
///
/// A file that includes this header is compiled for one instruction set. Its V
/// is in an anonymous namespace, so these templates are instantiated for that
/// file alone; and they call no inline function of the standard library, of
/// which the linker would keep one copy for all files, perhaps with
/// instructions that this CPU lacks.
#pragma once

#include "common/base/deterministic_math.h"
#include "common/simd/primitives.h"

namespace kvlab {

template <typename V>
struct Kernels {
  /// Loads 16 weights of any type as f32.
  template <WeightType type>
  static V LoadWeights(const void* row, std::int64_t i) {
    if constexpr (type == WeightType::kF32) {
      return V::Load(static_cast<const float*>(row) + i);
    } else if constexpr (type == WeightType::kBF16) {
      return V::LoadBf16(static_cast<const std::uint16_t*>(row) + i);
    } else {
      return V::LoadF16(static_cast<const std::uint16_t*>(row) + i);
    }
  }

  /// Loads the last n < 16 weights of a row, zeros after them.
  template <WeightType type>
  static V LoadWeightsPartial(const void* row, std::int64_t i, int n) {
    if constexpr (type == WeightType::kF32) {
      return V::LoadPartial(static_cast<const float*>(row) + i, n);
    } else {
      std::uint16_t block[kLanes] = {};
      const auto* p = static_cast<const std::uint16_t*>(row) + i;
      for (int j = 0; j < n; ++j) block[j] = p[j];
      return LoadWeights<type>(block, 0);
    }
  }

  static float Dot(const float* a, const float* b, std::int64_t n) {
    V sum = V::Zero();
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      sum = V::Fma(V::Load(a + i), V::Load(b + i), sum);
    }
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      sum =
          V::Fma(V::LoadPartial(a + i, rest), V::LoadPartial(b + i, rest), sum);
    }
    return sum.Sum();
  }

  static void DotKeys(const float* query, const float* keys, int tokens,
                      int stride, float scale, float* scores) {
    int t = 0;
    for (; t + 4 <= tokens; t += 4) {  // four rows at once hide fma's latency
      const float* k = keys + std::int64_t{t} * stride;
      V s0 = V::Zero(), s1 = V::Zero(), s2 = V::Zero(), s3 = V::Zero();
      for (int i = 0; i < stride; i += kLanes) {
        const V q = V::Load(query + i);
        s0 = V::Fma(q, V::Load(k + i), s0);
        s1 = V::Fma(q, V::Load(k + stride + i), s1);
        s2 = V::Fma(q, V::Load(k + 2 * std::int64_t{stride} + i), s2);
        s3 = V::Fma(q, V::Load(k + 3 * std::int64_t{stride} + i), s3);
      }
      scores[t] = s0.Sum() * scale;
      scores[t + 1] = s1.Sum() * scale;
      scores[t + 2] = s2.Sum() * scale;
      scores[t + 3] = s3.Sum() * scale;
    }
    for (; t < tokens; ++t) {
      scores[t] = Dot(query, keys + std::int64_t{t} * stride, stride) * scale;
    }
  }

  /// The accumulators of kVectors * 16 elements stay in registers while all
  /// tokens of the tile pass by.
  template <int kVectors>
  static void AccumulateColumns(const float* weights, const float* values,
                                int tokens, int stride, float* acc) {
    V a[kVectors];
    for (int j = 0; j < kVectors; ++j) a[j] = V::Load(acc + j * kLanes);
    for (int t = 0; t < tokens; ++t) {
      const V w = V::Set(weights[t]);
      const float* v = values + std::int64_t{t} * stride;
      for (int j = 0; j < kVectors; ++j) {
        a[j] = V::Fma(w, V::Load(v + j * kLanes), a[j]);
      }
    }
    for (int j = 0; j < kVectors; ++j) a[j].Store(acc + j * kLanes);
  }

  static void AccumulateValues(const float* weights, const float* values,
                               int tokens, int stride, float* acc) {
    int i = 0;
    for (; i + V::kColumns <= stride; i += V::kColumns) {
      AccumulateColumns<V::kColumns / kLanes>(weights, values + i, tokens,
                                              stride, acc + i);
    }
    for (; i < stride; i += kLanes) {
      AccumulateColumns<1>(weights, values + i, tokens, stride, acc + i);
    }
  }

  static float Quantise(const float* x, int n, std::int8_t* codes) {
    V largest = V::Zero();
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      largest = V::Max(V::Abs(V::Load(x + i)), largest);
    }
    if (i < n) largest = V::Max(V::Abs(V::LoadPartial(x + i, n - i)), largest);
    float lanes[kLanes];
    largest.Store(lanes);
    const float scale = Max(lanes, kLanes) / 127.0f;
    if (scale == 0) {
      for (i = 0; i < n; ++i) codes[i] = 0;
      return 0;
    }
    const V s = V::Set(scale);
    for (i = 0; i + kLanes <= n; i += kLanes) {
      Codes(V::Load(x + i) / s).StoreInt8(codes + i);
    }
    if (i < n) {
      std::int8_t rest[kLanes];
      Codes(V::LoadPartial(x + i, n - i) / s).StoreInt8(rest);
      for (int j = 0; j < n - i; ++j) codes[i + j] = rest[j];
    }
    return scale;
  }

  /// Rounds to nearest, ties to even, and clamps to +-127. Only the quotient
  /// by a subnormal scale is ever beyond, and never beyond 255.
  static V Codes(V quotient) {
    const V round = V::Set(exp_constants::kRound);
    const V rounded = (quotient + round) + V::Set(-exp_constants::kRound);
    return V::Min(V::Max(rounded, V::Set(-127.0f)), V::Set(127.0f));
  }

  /// Rows of keys are read one after another, whole, as they lie in memory;
  /// everything after the integer dots is 16 tokens at a time.
  static void DotKeysQ8(const Q8Query& query, const std::int8_t* keys,
                        const float* key_scales, int tokens, int stride,
                        float scale, float* scores) {
    constexpr int kGroups = 4;  // groups of each row at a time: 128 codes
    const int groups = stride / kQ8Group;
    for (int t = 0; t < tokens; t += kLanes) {
      const int count = tokens - t < kLanes ? tokens - t : kLanes;
      V f = V::Zero();
      for (int g = 0; g < groups; g += kGroups) {
        const int some = groups - g < kGroups ? groups - g : kGroups;
        // sums[j][r]: group g + j of the query with that of token t + r.
        alignas(64) std::int32_t sums[kGroups][kLanes];
        for (int r = 0; r < kLanes; r += 4) {
          if (r >= count) {  // no such tokens
            for (int j = 0; j < some; ++j) {
              for (int i = r; i < kLanes; ++i) sums[j][i] = 0;
            }
            break;
          }
          const std::int8_t* rows[4];  // beyond the last token: the last again
          for (int i = 0; i < 4; ++i) {
            const int row = r + i < count ? r + i : count - 1;
            rows[i] = keys + std::int64_t{t + row} * stride + g * kQ8Group;
          }
          V::DotRows(query.codes + g * kQ8Group, rows, some, &sums[0][r]);
        }
        for (int j = 0; j < some; ++j) {
          f = V::Fma(V::LoadInt32(sums[j]), V::Set(query.scales[g + j]), f);
        }
      }
      if (count == kLanes) {
        ((f * V::Load(key_scales + t)) * V::Set(scale)).Store(scores + t);
      } else {
        float block[kLanes];
        ((f * V::LoadPartial(key_scales + t, count)) * V::Set(scale))
            .Store(block);
        for (int r = 0; r < count; ++r) scores[t + r] = block[r];
      }
    }
  }

  /// As AccumulateColumns, on codes.
  template <int kVectors>
  static void AccumulateColumnsQ8(const float* weights,
                                  const std::int8_t* values, int tokens,
                                  int stride, float* acc) {
    V a[kVectors];
    for (int j = 0; j < kVectors; ++j) a[j] = V::Load(acc + j * kLanes);
    for (int t = 0; t < tokens; ++t) {
      const V w = V::Set(weights[t]);
      const std::int8_t* v = values + std::int64_t{t} * stride;
      for (int j = 0; j < kVectors; ++j) {
        a[j] = V::Fma(w, V::LoadInt8(v + j * kLanes), a[j]);
      }
    }
    for (int j = 0; j < kVectors; ++j) a[j].Store(acc + j * kLanes);
  }

  static void AccumulateValuesQ8(const float* weights,
                                 const std::int8_t* values,
                                 const float* value_scales, int tokens,
                                 int stride, float* acc) {
    constexpr int kVectors = V::kColumns / kLanes;
    float scaled[kTileTokens];
    for (int t = 0; t < tokens; ++t) scaled[t] = weights[t] * value_scales[t];
    int i = 0;
    for (; i + V::kColumns <= stride; i += V::kColumns) {
      AccumulateColumnsQ8<kVectors>(scaled, values + i, tokens, stride,
                                    acc + i);
    }
    for (; i < stride; i += kQ8Group) {
      AccumulateColumnsQ8<2>(scaled, values + i, tokens, stride, acc + i);
    }
  }

  static float Max(const float* x, int n) {
    float max = x[0];
    int i = 0;
    if (n >= kLanes) {
      V m = V::Load(x);
      for (i = kLanes; i + kLanes <= n; i += kLanes) {
        m = V::Max(m, V::Load(x + i));
      }
      float lanes[kLanes];
      m.Store(lanes);
      for (int j = 0; j < kLanes; ++j) max = lanes[j] > max ? lanes[j] : max;
    }
    for (; i < n; ++i) max = x[i] > max ? x[i] : max;
    return max;
  }

  static float ExpAndSum(float* x, int n, float max) {
    V sum = V::Zero();
    const V minus_max = V::Set(-max);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const V e = V::Exp(V::Load(x + i) + minus_max);
      e.Store(x + i);
      sum = sum + e;
    }
    if (i < n) {
      float rest[kLanes];
      V::Exp(V::LoadPartial(x + i, n - i) + minus_max).Store(rest);
      for (int j = 0; j < n - i; ++j) x[i + j] = rest[j];
      sum = sum + V::LoadPartial(x + i, n - i);
    }
    return sum.Sum();
  }

  static void Scale(float* x, int n, float factor) {
    const V f = V::Set(factor);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) (V::Load(x + i) * f).Store(x + i);
    for (; i < n; ++i) x[i] = x[i] * factor;
  }

  /// rows x tokens dots at once: each loaded vector serves several of them.
  template <WeightType type, int kRows, int kTokens>
  static void MatmulBlock(const float* const* x, const void* const* w,
                          std::int64_t cols, float* const* out,
                          std::int64_t row) {
    V sum[kRows][kTokens];
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kTokens; ++t) sum[r][t] = V::Zero();
    }
    std::int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes) {
      V wr[kRows];
      for (int r = 0; r < kRows; ++r) wr[r] = LoadWeights<type>(w[r], i);
      for (int t = 0; t < kTokens; ++t) {
        const V xt = V::Load(x[t] + i);
        for (int r = 0; r < kRows; ++r) {
          sum[r][t] = V::Fma(wr[r], xt, sum[r][t]);
        }
      }
    }
    if (i < cols) {
      const int rest = static_cast<int>(cols - i);
      V wr[kRows];
      for (int r = 0; r < kRows; ++r) {
        wr[r] = LoadWeightsPartial<type>(w[r], i, rest);
      }
      for (int t = 0; t < kTokens; ++t) {
        const V xt = V::LoadPartial(x[t] + i, rest);
        for (int r = 0; r < kRows; ++r) {
          sum[r][t] = V::Fma(wr[r], xt, sum[r][t]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int t = 0; t < kTokens; ++t) out[t][row + r] = sum[r][t].Sum();
    }
  }

  /// kRows weight rows against all tokens.
  template <WeightType type, int kRows>
  static void MatmulRows(const TokenRows& x, const void* const* w, float* out,
                         std::int64_t out_stride, std::int64_t row) {
    constexpr int kTokens = V::kMatmulTokens;
    const float* xs[kTokens];
    float* outs[kTokens];
    int t = 0;
    for (; t + kTokens <= x.tokens; t += kTokens) {
      for (int j = 0; j < kTokens; ++j) {
        xs[j] = x.data + (t + j) * x.stride;
        outs[j] = out + (t + j) * out_stride;
      }
      MatmulBlock<type, kRows, kTokens>(xs, w, x.cols, outs, row);
    }
    for (; t < x.tokens; ++t) {
      xs[0] = x.data + t * x.stride;
      outs[0] = out + t * out_stride;
      MatmulBlock<type, kRows, 1>(xs, w, x.cols, outs, row);
    }
  }

  template <WeightType type>
  static void MatmulOfType(const TokenRows& x, const WeightMatrix& w,
                           std::int64_t first_row, std::int64_t last_row,
                           float* out, std::int64_t out_stride) {
    constexpr int kRows = V::kMatmulRows;
    const std::int64_t row_bytes = w.cols * (type == WeightType::kF32 ? 4 : 2);
    const auto* base = static_cast<const unsigned char*>(w.data);
    const void* rows[kRows];
    std::int64_t r = first_row;
    for (; r + kRows <= last_row; r += kRows) {
      for (int j = 0; j < kRows; ++j) rows[j] = base + (r + j) * row_bytes;
      MatmulRows<type, kRows>(x, rows, out, out_stride, r);
    }
    for (; r < last_row; ++r) {
      rows[0] = base + r * row_bytes;
      MatmulRows<type, 1>(x, rows, out, out_stride, r);
    }
  }

  static void Matmul(const TokenRows& x, const WeightMatrix& w,
                     std::int64_t first_row, std::int64_t last_row, float* out,
                     std::int64_t out_stride) {
    switch (w.type) {
      case WeightType::kF32:
        return MatmulOfType<WeightType::kF32>(x, w, first_row, last_row, out,
                                              out_stride);
      case WeightType::kF16:
        return MatmulOfType<WeightType::kF16>(x, w, first_row, last_row, out,
                                              out_stride);
      case WeightType::kBF16:
        return MatmulOfType<WeightType::kBF16>(x, w, first_row, last_row, out,
                                               out_stride);
    }
  }

  static V SiluMulBlock(V gate, V up) {
    const V one = V::Set(1.0f);
    const V e = V::Exp(gate * V::Set(-1.0f));
    return gate / (one + e) * up;
  }

  static void SiluMul(const float* gate, const float* up, std::int64_t n,
                      float* out) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      SiluMulBlock(V::Load(gate + i), V::Load(up + i)).Store(out + i);
    }
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      float block[kLanes];
      SiluMulBlock(V::LoadPartial(gate + i, rest), V::LoadPartial(up + i, rest))
          .Store(block);
      for (int j = 0; j < rest; ++j) out[i + j] = block[j];
    }
  }

  static constexpr Primitives Table(Isa isa) {
    return {.isa = isa,
            .dot_keys = DotKeys,
            .accumulate_values = AccumulateValues,
            .quantise = Quantise,
            .dot_keys_q8 = DotKeysQ8,
            .accumulate_values_q8 = AccumulateValuesQ8,
            .max = Max,
            .exp_and_sum = ExpAndSum,
            .scale = Scale,
            .dot = Dot,
            .matmul = Matmul,
            .silu_mul = SiluMul};
  }
};

}  // namespace kvlab
