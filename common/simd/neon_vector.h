/// \file
/// NEON, the vectors of every 64-bit ARM: 16 lanes are four registers. For
/// neon.cpp and neon_dotprod.cpp alone, which differ in the integer dot only:
/// each is compiled for its own instruction set and has its own copy, hence the
/// anonymous namespace.
#pragma once

#include <arm_neon.h>

#include "common/base/deterministic_math.h"
#include "common/simd/kernels.h"

namespace kvlab {
namespace {

/// Dot::Products(q, k) multiplies 32 codes and gives 4 sums, exact, that add up
/// to their dot.
template <typename Dot>
struct NeonVector {
  /// One register.
  struct Part {
    static constexpr int kLanes = 4;
    float32x4_t v;
    static Part Zero() { return {vdupq_n_f32(0)}; }
    static Part Load(const float* p) { return {vld1q_f32(p)}; }
    static Part Fma(Part a, Part b, Part c) {
      return {vfmaq_f32(c.v, a.v, b.v)};
    }
    void Store(float* p) const { vst1q_f32(p, v); }
  };
  // 4 x 6 sums take 24 of the 32 registers.
  static constexpr int kMatmulRows = 4;
  static constexpr int kMatmulTokens = 6;
  static constexpr int kMatvecRows = 2;
  // Two heads' sums take 8 registers.
  static constexpr int kValueRows = 8;
  static constexpr int kColumns = 16;
  static constexpr int kPrefetchBytes = 0;

  float32x4_t r[4];  // lanes 0-3, 4-7, 8-11, 12-15

  static NeonVector Zero() { return Set(0.0f); }
  static NeonVector Set(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return {{v, v, v, v}};
  }
  static NeonVector Load(const float* p) {
    return {
        {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
  }
  static NeonVector LoadPartial(const float* p, int n) {
    float block[kLanes] = {};
    for (int i = 0; i < n; ++i) block[i] = p[i];
    return Load(block);
  }
  static NeonVector LoadBf16(const std::uint16_t* p) {
    return Each([p](int i) {
      return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
    });
  }
  static NeonVector LoadF16(const std::uint16_t* p) {
    return Each([p](int i) {
      return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    });
  }
  static NeonVector LoadInt8(const std::int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
    const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  void Store(float* p) const {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, r[i]);
  }
  void StoreInt8(std::int8_t* p) const {
    const auto words = [this](int i) {
      return vcombine_s16(vmovn_s32(vcvtq_s32_f32(r[i])),
                          vmovn_s32(vcvtq_s32_f32(r[i + 1])));
    };
    vst1q_s8(p, vcombine_s8(vmovn_s16(words(0)), vmovn_s16(words(2))));
  }

  static NeonVector Fma(NeonVector a, NeonVector b, NeonVector c) {
    return Each([&](int i) { return vfmaq_f32(c.r[i], a.r[i], b.r[i]); });
  }
  // Not vmaxq_f32, which treats NaN and -0 in its own way.
  static NeonVector Max(NeonVector a, NeonVector b) {
    return Each([&](int i) {
      return vbslq_f32(vcgtq_f32(a.r[i], b.r[i]), a.r[i], b.r[i]);
    });
  }
  static NeonVector Min(NeonVector a, NeonVector b) {
    return Each([&](int i) {
      return vbslq_f32(vcltq_f32(a.r[i], b.r[i]), a.r[i], b.r[i]);
    });
  }
  static NeonVector Abs(NeonVector a) {
    return Each([&](int i) { return vabsq_f32(a.r[i]); });
  }
  friend NeonVector operator+(NeonVector a, NeonVector b) {
    return Each([&](int i) { return vaddq_f32(a.r[i], b.r[i]); });
  }
  friend NeonVector operator*(NeonVector a, NeonVector b) {
    return Each([&](int i) { return vmulq_f32(a.r[i], b.r[i]); });
  }
  friend NeonVector operator/(NeonVector a, NeonVector b) {
    return Each([&](int i) { return vdivq_f32(a.r[i], b.r[i]); });
  }
  static NeonVector Exp(NeonVector x) {
    return Each([&](int i) { return Exp4(x.r[i]); });
  }

  float Sum() const {
    const float32x4_t low = vaddq_f32(r[0], r[2]);   // lanes 0-3 of 8
    const float32x4_t high = vaddq_f32(r[1], r[3]);  // lanes 4-7
    const float32x4_t four = vaddq_f32(low, high);
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }

  template <int kGroups>
  static void DotRows(const std::int8_t* q, const std::int8_t* rows, int count,
                      int stride, NeonVector* sums) {
    for (int j = 0; j < kGroups; ++j) {
      const int at = j * kQ8Group;
      sums[j] = Each([&](int i) {
        return FourRows(q + at, rows + at, 4 * i, count, stride);
      });
    }
  }

 private:
  /// 32 codes of rows r to r + 3 times those of q.
  static float32x4_t FourRows(const std::int8_t* q, const std::int8_t* rows,
                              int r, int count, int stride) {
    if (r >= count) return vdupq_n_f32(0);
    const auto products = [&](int row) {
      const int present = row < count ? row : count - 1;
      return Dot::Products(q, rows + std::int64_t{present} * stride);
    };
    const int32x4_t a = products(r);
    const int32x4_t b = products(r + 1);
    const int32x4_t c = products(r + 2);
    const int32x4_t d = products(r + 3);
    return vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)));
  }
  template <typename F>
  static NeonVector Each(F f) {
    return {{f(0), f(1), f(2), f(3)}};
  }
  static float32x4_t PowerOfTwo(int32x4_t n) {
    return vreinterpretq_f32_s32(
        vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
  }

  /// The steps of Exp(float), four at a time.
  static float32x4_t Exp4(float32x4_t x) {
    using namespace exp_constants;
    const float32x4_t lowest = vdupq_n_f32(kLowest);
    const float32x4_t highest = vdupq_n_f32(kHighest);
    // A NaN is neither larger nor smaller: it stays.
    x = vbslq_f32(vcgtq_f32(lowest, x), lowest, x);
    x = vbslq_f32(vcltq_f32(highest, x), highest, x);
    const float32x4_t round = vdupq_n_f32(kRound);
    const float32x4_t n =
        vsubq_f32(vfmaq_f32(round, x, vdupq_n_f32(kLog2E)), round);
    float32x4_t remainder = vfmaq_f32(x, n, vdupq_n_f32(-kLn2High));
    remainder = vfmaq_f32(remainder, n, vdupq_n_f32(-kLn2Low));
    float32x4_t p = vdupq_n_f32(kP[4]);
    for (int i = 3; i >= 0; --i) {
      p = vfmaq_f32(vdupq_n_f32(kP[i]), p, remainder);
    }
    p = vfmaq_f32(remainder, p, vmulq_f32(remainder, remainder));
    p = vaddq_f32(p, vdupq_n_f32(1.0f));
    const int32x4_t exponent = vcvtq_s32_f32(n);
    const int32x4_t half = vshrq_n_s32(exponent, 1);
    p = vmulq_f32(p, PowerOfTwo(half));
    return vmulq_f32(p, PowerOfTwo(vsubq_s32(exponent, half)));
  }
};

}  // namespace
}  // namespace kvlab
