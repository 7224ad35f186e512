/// \file
/// AVX-512 (F, BW, DQ, VL): 16 lanes are one register. For avx512.cpp and
/// avx512vnni.cpp alone, which differ in the integer dot only: each is compiled
/// for its own instruction set and has its own copy, hence the anonymous
/// namespace.
#pragma once

#include <immintrin.h>

#include "common/base/deterministic_math.h"
#include "common/simd/kernels.h"

namespace kvlab {
namespace {

/// `Dot` multiplies 64 codes: Dot::Prepare(q) once, then prepared.Products(k)
/// gives 16 sums of 4 neighbouring products, exact.
template <typename Dot>
struct Avx512Vector {
  using Part = Avx512Vector;
  static constexpr int kLanes = kvlab::kLanes;
  // 4 x 4 sums take 16 of the 32 registers.
  static constexpr int kMatmulRows = 4;
  static constexpr int kMatmulTokens = 4;
  static constexpr int kMatvecRows = 2;
  // Two heads' sums of a whole row of 128 take 16 registers.
  static constexpr int kValueRows = 32;
  static constexpr int kColumns = 128;
  static constexpr int kPrefetchBytes =
      0;  // on Zen 4 it costs more than it gives

  __m512 v;

  static Avx512Vector Zero() { return {_mm512_setzero_ps()}; }
  static Avx512Vector Set(float x) { return {_mm512_set1_ps(x)}; }
  static Avx512Vector Load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static Avx512Vector LoadPartial(const float* p, int n) {
    const auto mask = static_cast<__mmask16>((1u << n) - 1);
    return {_mm512_maskz_loadu_ps(mask, p)};
  }
  static Avx512Vector LoadBf16(const std::uint16_t* p) {
    return {_mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(Load256(p)), 16))};
  }
  static Avx512Vector LoadF16(const std::uint16_t* p) {
    return {_mm512_cvtph_ps(Load256(p))};
  }
  static Avx512Vector LoadInt8(const std::int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  void Store(float* p) const { _mm512_storeu_ps(p, v); }
  void StoreInt8(std::int8_t* p) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
  }

  static Avx512Vector Fma(Avx512Vector a, Avx512Vector b, Avx512Vector c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
  }
  // maxps is a > b ? a : b.
  static Avx512Vector Max(Avx512Vector a, Avx512Vector b) {
    return {_mm512_max_ps(a.v, b.v)};
  }
  static Avx512Vector Min(Avx512Vector a, Avx512Vector b) {
    return {_mm512_min_ps(a.v, b.v)};
  }
  static Avx512Vector Abs(Avx512Vector a) {
    return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)};
  }
  friend Avx512Vector operator+(Avx512Vector a, Avx512Vector b) {
    return {_mm512_add_ps(a.v, b.v)};
  }
  friend Avx512Vector operator*(Avx512Vector a, Avx512Vector b) {
    return {_mm512_mul_ps(a.v, b.v)};
  }
  friend Avx512Vector operator/(Avx512Vector a, Avx512Vector b) {
    return {_mm512_div_ps(a.v, b.v)};
  }

  /// The steps of Exp(float).
  static Avx512Vector Exp(Avx512Vector lanes) {
    using namespace exp_constants;
    // maxps and minps return their second operand if one is NaN: x.
    __m512 x = _mm512_max_ps(_mm512_set1_ps(kLowest), lanes.v);
    x = _mm512_min_ps(_mm512_set1_ps(kHighest), x);
    const __m512 round = _mm512_set1_ps(kRound);
    const __m512 n =
        _mm512_sub_ps(_mm512_fmadd_ps(x, _mm512_set1_ps(kLog2E), round), round);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2High), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Low), r);
    __m512 p = _mm512_set1_ps(kP[4]);
    for (int i = 3; i >= 0; --i) {
      p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kP[i]));
    }
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r);
    p = _mm512_add_ps(p, _mm512_set1_ps(1.0f));
    const __m512i exponent = _mm512_cvtps_epi32(n);
    const __m512i half = _mm512_srai_epi32(exponent, 1);
    p = _mm512_mul_ps(p, PowerOfTwo(half));
    return {_mm512_mul_ps(p, PowerOfTwo(_mm512_sub_epi32(exponent, half)))};
  }

  float Sum() const {
    const __m256 eight = _mm256_add_ps(
        _mm512_castps512_ps256(v),
        _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight),
                                   _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    const __m128 one = _mm_add_ss(two, _mm_movehdup_ps(two));
    return _mm_cvtss_f32(one);
  }

  template <int kGroups>
  [[gnu::always_inline]] static void DotRows(const std::int8_t* q,
                                             const std::int8_t* rows, int count,
                                             int stride, Avx512Vector* sums) {
    // fours[i]: rows 4i to 4i + 3; its 128-bit part j: group j.
    __m512i fours[4];
    for (int i = 0; i < 4; ++i) {
      fours[i] = FourRows<kGroups>(q, rows, 4 * i, count, stride);
    }
    // A 4 x 4 transposition: part i of groups[j] is to be part j of fours[i].
    const __m512i a = _mm512_shuffle_i32x4(fours[0], fours[1], 0x44);
    const __m512i b = _mm512_shuffle_i32x4(fours[2], fours[3], 0x44);
    const __m512i c = _mm512_shuffle_i32x4(fours[0], fours[1], 0xEE);
    const __m512i d = _mm512_shuffle_i32x4(fours[2], fours[3], 0xEE);
    const __m512i groups[4] = {
        _mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD),
        _mm512_shuffle_i32x4(c, d, 0x88), _mm512_shuffle_i32x4(c, d, 0xDD)};
    for (int j = 0; j < kGroups; ++j) {
      sums[j] = {_mm512_cvtepi32_ps(groups[j])};
    }
  }

 private:
  /// The dots of up to 4 groups of rows r to r + 3: 128-bit part j has group j.
  template <int kGroups>
  [[gnu::always_inline]] static __m512i FourRows(const std::int8_t* q,
                                                 const std::int8_t* rows, int r,
                                                 int count, int stride) {
    if (r >= count) return _mm512_setzero_si512();
    constexpr bool kBoth = kGroups > 1;
    const __m512i first = TwoGroups<kBoth>(q, rows, r, count, stride);
    __m512i second = _mm512_setzero_si512();
    if constexpr (kGroups > 2) {
      second = TwoGroups<true>(q + 2 * kQ8Group, rows + 2 * kQ8Group, r, count,
                               stride);
    }
    // Of 128-bit parts 0 and 1 belong to a group, 2 and 3 to the next.
    return _mm512_add_epi32(_mm512_shuffle_i32x4(first, second, 0x88),
                            _mm512_shuffle_i32x4(first, second, 0xDD));
  }
  /// 64 codes of rows r to r + 3 times those of q: in each 128-bit part the
  /// sums of the four rows over a fourth of the codes. Without kBoth there are
  /// only 32 codes, the rest count as zero.
  template <bool kBoth>
  [[gnu::always_inline]] static __m512i TwoGroups(const std::int8_t* q,
                                                  const std::int8_t* rows,
                                                  int r, int count,
                                                  int stride) {
    const auto load = [](const std::int8_t* p) {
      return kBoth ? Load512(p) : _mm512_zextsi256_si512(Load256(p));
    };
    const Dot dot = Dot::Prepare(load(q));
    const auto products = [&](int row) {
      const int present = row < count ? row : count - 1;
      return dot.Products(load(rows + std::int64_t{present} * stride));
    };
    const __m512i a = products(r);
    const __m512i b = products(r + 1);
    const __m512i c = products(r + 2);
    const __m512i d = products(r + 3);
    const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b),
                                        _mm512_unpackhi_epi32(a, b));
    const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d),
                                        _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd),
                            _mm512_unpackhi_epi64(ab, cd));
  }
  static __m256i Load256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static __m512i Load512(const void* p) { return _mm512_loadu_si512(p); }
  static __m512 PowerOfTwo(__m512i n) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
  }
};

}  // namespace
}  // namespace kvlab
