/// \file
/// Every block primitive, written once over a vector of 16 floats.
///
/// `V` is such a vector: scalar.cpp makes it from an array, avx2.cpp from two
/// registers, and so on. V offers
///
///     V::Zero()  V::Set(x)  V::Load(p)  V::LoadPartial(p, n)  v.Store(p)
///     V::LoadBf16(p)  V::LoadF16(p)            16 elements, widened to f32
///     a + b  a * b  a / b                      IEEE, lane by lane
///     V::Fma(a, b, c)                          a * b + c with one rounding
///     V::Max(a, b)                             a > b ? a : b
///     V::Exp(x)                                the steps of Exp(float)
///     v.Sum()                                  lanes i and i+8, then +4, +2,
///     +1
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
    for (; i + 4 * kLanes <= stride; i += 4 * kLanes) {
      AccumulateColumns<4>(weights, values + i, tokens, stride, acc + i);
    }
    for (; i < stride; i += kLanes) {
      AccumulateColumns<1>(weights, values + i, tokens, stride, acc + i);
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
            .max = Max,
            .exp_and_sum = ExpAndSum,
            .scale = Scale,
            .dot = Dot,
            .matmul = Matmul,
            .silu_mul = SiluMul};
  }
};

}  // namespace kvlab
