/// \file
/// AVX2 with FMA and F16C (x86-64 since 2013): 16 lanes are two registers.
#include <immintrin.h>

#include "common/base/deterministic_math.h"
#include "common/simd/kernels.h"
#include "common/simd/tables.h"

namespace kvlab {
namespace {

struct Avx2Vector {
  // 2 x 3 sums take 12 of the 16 registers.
  static constexpr int kMatmulRows = 2;
  static constexpr int kMatmulTokens = 3;
  // Sums of a pass over the values: 8 registers.
  static constexpr int kColumns = 64;

  __m256 low;   // lanes 0-7
  __m256 high;  // lanes 8-15

  static Avx2Vector Zero() {
    return {_mm256_setzero_ps(), _mm256_setzero_ps()};
  }
  static Avx2Vector Set(float x) {
    return {_mm256_set1_ps(x), _mm256_set1_ps(x)};
  }
  static Avx2Vector Load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  static Avx2Vector LoadPartial(const float* p, int n) {
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i first = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), index);
    if (n <= 8) return {_mm256_maskload_ps(p, first), _mm256_setzero_ps()};
    const __m256i second = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), index);
    return {_mm256_loadu_ps(p), _mm256_maskload_ps(p + 8, second)};
  }
  static Avx2Vector LoadBf16(const std::uint16_t* p) {
    return {WidenBf16(p), WidenBf16(p + 8)};
  }
  static Avx2Vector LoadF16(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(Load8(p)), _mm256_cvtph_ps(Load8(p + 8))};
  }
  static Avx2Vector LoadInt8(const std::int8_t* p) {
    return {WidenInt8(p), WidenInt8(p + 8)};
  }
  static Avx2Vector LoadInt32(const std::int32_t* p) {
    return {_mm256_cvtepi32_ps(Load256(p)), _mm256_cvtepi32_ps(Load256(p + 8))};
  }
  void Store(float* p) const {
    _mm256_storeu_ps(p, low);
    _mm256_storeu_ps(p + 8, high);
  }
  void StoreInt8(std::int8_t* p) const {
    const __m256i words =  // by 128-bit halves: 0-3 8-11 4-7 12-15
        _mm256_packs_epi32(_mm256_cvtps_epi32(low), _mm256_cvtps_epi32(high));
    const __m256i ordered = _mm256_permute4x64_epi64(words, 0xD8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered),
                                          _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  }

  static Avx2Vector Fma(Avx2Vector a, Avx2Vector b, Avx2Vector c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low),
            _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  // maxps is a > b ? a : b.
  static Avx2Vector Max(Avx2Vector a, Avx2Vector b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
  }
  static Avx2Vector Min(Avx2Vector a, Avx2Vector b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
  }
  static Avx2Vector Abs(Avx2Vector a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
  }
  static Avx2Vector Exp(Avx2Vector x) { return {Exp8(x.low), Exp8(x.high)}; }

  float Sum() const {
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight),
                                   _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    const __m128 one = _mm_add_ss(two, _mm_movehdup_ps(two));
    return _mm_cvtss_f32(one);
  }

  /// sums[j * kLanes + r] = group j of q . group j of rows[r], for 4 rows.
  ///
  /// maddubs multiplies unsigned by signed bytes and adds pairs in 16 bits, so
  /// it gets |q| and k with q's sign; codes stay within +-127, so a pair is at
  /// most 2 * 127 * 127 < 2^15 and nothing saturates.
  static void DotRows(const std::int8_t* q, const std::int8_t* const* rows,
                      int groups, std::int32_t* sums) {
    for (int j = 0; j < groups; ++j) {
      const __m256i query = Load256(q + j * kQ8Group);
      const __m256i magnitude = _mm256_abs_epi8(query);
      const auto products = [&](const std::int8_t* row) {
        const __m256i key =
            _mm256_sign_epi8(Load256(row + j * kQ8Group), query);
        return _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, key),
                                 _mm256_set1_epi16(1));
      };
      const __m256i a = products(rows[0]);
      const __m256i b = products(rows[1]);
      const __m256i c = products(rows[2]);
      const __m256i d = products(rows[3]);
      const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b),
                                          _mm256_unpackhi_epi32(a, b));
      const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d),
                                          _mm256_unpackhi_epi32(c, d));
      const __m256i abcd = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd),
                                            _mm256_unpackhi_epi64(ab, cd));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + j * kLanes),
                       _mm_add_epi32(_mm256_castsi256_si128(abcd),
                                     _mm256_extracti128_si256(abcd, 1)));
    }
  }

 private:
  static __m256i Load256(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static __m256 WidenInt8(const std::int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static __m128i Load8(const std::uint16_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  static __m256 WidenBf16(const std::uint16_t* p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(Load8(p)), 16));
  }
  static __m256 PowerOfTwo(__m256i n) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  }

  /// The steps of Exp(float), eight at a time.
  static __m256 Exp8(__m256 x) {
    using namespace exp_constants;
    // maxps and minps return their second operand if one is NaN: x.
    x = _mm256_max_ps(_mm256_set1_ps(kLowest), x);
    x = _mm256_min_ps(_mm256_set1_ps(kHighest), x);
    const __m256 round = _mm256_set1_ps(kRound);
    const __m256 n =
        _mm256_sub_ps(_mm256_fmadd_ps(x, _mm256_set1_ps(kLog2E), round), round);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
    __m256 p = _mm256_set1_ps(kP[4]);
    for (int i = 3; i >= 0; --i) {
      p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kP[i]));
    }
    p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1.0f));
    const __m256i exponent = _mm256_cvtps_epi32(n);
    const __m256i half = _mm256_srai_epi32(exponent, 1);
    p = _mm256_mul_ps(p, PowerOfTwo(half));
    return _mm256_mul_ps(p, PowerOfTwo(_mm256_sub_epi32(exponent, half)));
  }
};

Avx2Vector operator+(Avx2Vector a, Avx2Vector b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
Avx2Vector operator*(Avx2Vector a, Avx2Vector b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
Avx2Vector operator/(Avx2Vector a, Avx2Vector b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

}  // namespace

const Primitives& Avx2Primitives() {
  static constexpr Primitives table = Kernels<Avx2Vector>::Table(Isa::kAvx2);
  return table;
}

}  // namespace kvlab
