/// \file
/// AVX-512 with VNNI, the integer dot instruction (Intel servers from 2019 on,
/// AMD Zen 4 and later).
#include "common/simd/avx512_vector.h"
#include "common/simd/tables.h"

namespace kvlab {
namespace {

/// dpbusd multiplies unsigned by signed bytes and adds fours in 32 bits. k XOR
/// 0x80 is k + 128 as an unsigned byte, so the sum starts at -128 * (sum of q).
struct VnniDot {
  __m512i query;
  __m512i start;

  static VnniDot Prepare(__m512i q) {
    const __m512i zero = _mm512_setzero_si512();
    return {q, _mm512_sub_epi32(
                   zero, _mm512_dpbusd_epi32(zero, _mm512_set1_epi8(-128), q))};
  }
  __m512i Products(__m512i k) const {
    return _mm512_dpbusd_epi32(
        start, _mm512_xor_si512(k, _mm512_set1_epi8(-128)), query);
  }
};

}  // namespace

const Primitives& Avx512VnniPrimitives() {
  static constexpr Primitives table =
      Kernels<Avx512Vector<VnniDot>>::Table(Isa::kAvx512Vnni);
  return table;
}

}  // namespace kvlab
