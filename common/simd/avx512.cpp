/// \file
/// AVX-512 without VNNI (Intel servers from 2017 on).
#include "common/simd/avx512_vector.h"
#include "common/simd/tables.h"

namespace kvlab {
namespace {

/// maddubs multiplies unsigned by signed bytes and adds pairs in 16 bits, so it
/// gets |q| and k with q's sign; codes stay within +-127, so a pair is at most
/// 2 * 127 * 127 < 2^15 and nothing saturates.
struct MaddubsDot {
  __m512i magnitude;
  __mmask64 negative;

  static MaddubsDot Prepare(__m512i q) {
    return {_mm512_abs_epi8(q), _mm512_movepi8_mask(q)};
  }
  __m512i Products(__m512i k) const {
    const __m512i key =
        _mm512_mask_sub_epi8(k, negative, _mm512_setzero_si512(), k);
    return _mm512_madd_epi16(_mm512_maddubs_epi16(magnitude, key),
                             _mm512_set1_epi16(1));
  }
};

}  // namespace

const Primitives& Avx512Primitives() {
  static constexpr Primitives table =
      Kernels<Avx512Vector<MaddubsDot>>::Table(Isa::kAvx512);
  return table;
}

}  // namespace kvlab
