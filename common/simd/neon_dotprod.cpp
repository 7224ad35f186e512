/// \file
/// NEON with the integer dot instruction (RK3588, Raspberry Pi 5, Apple M1 and
/// later).
#include "common/simd/neon_vector.h"
#include "common/simd/tables.h"

namespace kvlab {
namespace {

struct SdotDot {
  static int32x4_t Products(const std::int8_t* q, const std::int8_t* k) {
    const int32x4_t first = vdotq_s32(vdupq_n_s32(0), vld1q_s8(q), vld1q_s8(k));
    return vdotq_s32(first, vld1q_s8(q + 16), vld1q_s8(k + 16));
  }
};

}  // namespace

const Primitives& NeonDotprodPrimitives() {
  static constexpr Primitives table =
      Kernels<NeonVector<SdotDot>>::Table(Isa::kNeonDotprod);
  return table;
}

}  // namespace kvlab
