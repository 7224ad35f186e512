/// \file
/// AVX-512 for CPUs that lack it, so that its files can be tested anywhere: in
/// the preset `emulated` this header stands before the compiler's own. SIMDe
/// has most of the intrinsics that we use; the few others follow here, made of
/// AVX2 halves. The results are those of the real instructions, the speed is
/// not.
#pragma once
#include_next <immintrin.h>

#include <cstdint>
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#define __m512 simde__m512
#define __m512i simde__m512i
#define __mmask16 simde__mmask16
#define __mmask64 simde__mmask64

namespace kvlab_emulated {

inline __m512i FromHalves(__m256i low, __m256i high) {
  simde__m512i_private r;
  r.m256i[0] = low;
  r.m256i[1] = high;
  return simde__m512i_from_private(r);
}
inline __m512 FromHalves(__m256 low, __m256 high) {
  simde__m512_private r;
  r.m256[0] = low;
  r.m256[1] = high;
  return simde__m512_from_private(r);
}
inline __m256i Half(__m512i x, int i) {
  return simde__m512i_to_private(x).m256i[i];
}
inline __m256 Half(__m512 x, int i) {
  return simde__m512_to_private(x).m256[i];
}

inline __m512 MaskzLoad(__mmask16 mask, const float* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = (mask >> i & 1) != 0 ? p[i] : 0.0f;
  return simde_mm512_loadu_ps(lanes);
}
inline __m512i RoundToInt(__m512 x) {
  return FromHalves(_mm256_cvtps_epi32(Half(x, 0)),
                    _mm256_cvtps_epi32(Half(x, 1)));
}
inline __m512 ToFloat(__m512i x) {
  return FromHalves(_mm256_cvtepi32_ps(Half(x, 0)),
                    _mm256_cvtepi32_ps(Half(x, 1)));
}
inline __m512 WidenHalf(__m256i x) {
  return FromHalves(_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1)));
}
inline __m512i WidenU16(__m256i x) {
  return FromHalves(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
                    _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1)));
}
inline __m512i WidenI8(__m128i x) {
  return FromHalves(_mm256_cvtepi8_epi32(x),
                    _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)));
}
inline __m128i NarrowToI8(__m512i x) {
  const simde__m512i_private a = simde__m512i_to_private(x);
  alignas(16) std::int8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<std::int8_t>(a.i32[i]);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}
inline __m512i ZeroExtend(__m256i x) {
  return FromHalves(x, _mm256_setzero_si256());
}
inline __m512i ShiftRight(__m512i x, int n) {
  return FromHalves(_mm256_srai_epi32(Half(x, 0), n),
                    _mm256_srai_epi32(Half(x, 1), n));
}

}  // namespace kvlab_emulated

#define _mm512_maskz_loadu_ps kvlab_emulated::MaskzLoad
#define _mm512_cvtps_epi32 kvlab_emulated::RoundToInt
#define _mm512_cvtepi32_ps kvlab_emulated::ToFloat
#define _mm512_cvtph_ps kvlab_emulated::WidenHalf
#define _mm512_cvtepu16_epi32 kvlab_emulated::WidenU16
#define _mm512_cvtepi8_epi32 kvlab_emulated::WidenI8
#define _mm512_cvtepi32_epi8 kvlab_emulated::NarrowToI8
#define _mm512_zextsi256_si512 kvlab_emulated::ZeroExtend
#define _mm512_srai_epi32 kvlab_emulated::ShiftRight
// SIMDe 0.7.4 gives this name the arguments of the masked form.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16 simde_mm512_madd_epi16
