/// \file
/// AVX2 with FMA and F16C (x86-64 since 2013): 16 lanes are two registers.
#include <immintrin.h>

#include "common/base/deterministic_math.h"
#include "common/simd/kernels.h"
#include "common/simd/tables.h"

namespace kvlab {
namespace {

struct Avx2Vector {
  /// One register.
  struct Part {
    static constexpr int kLanes = 8;
    __m256 v;
    static Part Zero() { return {_mm256_setzero_ps()}; }
    static Part Load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static Part Fma(Part a, Part b, Part c) {
      return {_mm256_fmadd_ps(a.v, b.v, c.v)};
    }
    void Store(float* p) const { _mm256_storeu_ps(p, v); }
  };
  // 4 x 3 sums take 12 of the 16 registers.
  static constexpr int kMatmulRows = 4;
  static constexpr int kMatmulTokens = 3;
  static constexpr int kMatvecRows = 4;
  // Two heads' sums take 4 registers, their weights for 4 rows 8 more.
  static constexpr int kValueRows = 4;
  static constexpr int kColumns = 16;
  static constexpr int kPrefetchBytes = 4096;  // a tile of q8 at head_dim 128

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

  template <int kGroups>
  [[gnu::always_inline]] static void DotRows(const std::int8_t* q,
                                             const std::int8_t* rows, int count,
                                             int stride, Avx2Vector* sums) {
    for (int j = 0; j < kGroups; ++j) {
      __m256i fours[4];
      for (int i = 0; i < 4; ++i) {
        fours[i] = FourRows(Load256(q + j * kQ8Group), rows + j * kQ8Group,
                            4 * i, count, stride);
      }
      sums[j] = {AddHalves(fours[0], fours[1]), AddHalves(fours[2], fours[3])};
    }
  }

 private:
  /// 32 codes of rows r to r + 3 times those of q: rows in the order r, r+1,
  /// r+2, r+3 in either half, each half over its half of the codes.
  ///
  /// maddubs multiplies unsigned by signed bytes and adds pairs in 16 bits, so
  /// it gets |q| and k with q's sign; codes stay within +-127, so a pair is at
  /// most 2 * 127 * 127 < 2^15 and nothing saturates.
  [[gnu::always_inline]] static __m256i FourRows(__m256i q,
                                                 const std::int8_t* rows, int r,
                                                 int count, int stride) {
    if (r >= count) return _mm256_setzero_si256();
    const __m256i magnitude = _mm256_abs_epi8(q);
    const auto products = [&](int row) {
      const int present = row < count ? row : count - 1;
      const __m256i key =
          _mm256_sign_epi8(Load256(rows + std::int64_t{present} * stride), q);
      return _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, key),
                               _mm256_set1_epi16(1));
    };
    const __m256i a = products(r);
    const __m256i b = products(r + 1);
    const __m256i c = products(r + 2);
    const __m256i d = products(r + 3);
    const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b),
                                        _mm256_unpackhi_epi32(a, b));
    const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d),
                                        _mm256_unpackhi_epi32(c, d));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd),
                            _mm256_unpackhi_epi64(ab, cd));
  }
  /// The sum of the halves of a, then of b, as floats.
  static __m256 AddHalves(__m256i a, __m256i b) {
    return _mm256_cvtepi32_ps(
        _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                         _mm256_permute2x128_si256(a, b, 0x31)));
  }
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
