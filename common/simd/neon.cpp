/// \file
/// NEON without the integer dot instruction (Raspberry Pi 4: Cortex-A72).
#include "common/simd/neon_vector.h"
#include "common/simd/tables.h"

namespace kvlab {
namespace {

/// Products of 8 bytes in 16 bits, two of them added: codes stay within +-127,
/// so 2 * 127 * 127 < 2^15 fits; then pairs are added in 32 bits.
struct MullDot {
  static int32x4_t Products(const std::int8_t* q, const std::int8_t* k) {
    return vpadalq_s16(vpaddlq_s16(Sixteen(q, k)), Sixteen(q + 16, k + 16));
  }
  static int16x8_t Sixteen(const std::int8_t* q, const std::int8_t* k) {
    const int8x16_t a = vld1q_s8(q);
    const int8x16_t b = vld1q_s8(k);
    return vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vget_high_s8(a),
                    vget_high_s8(b));
  }
};

}  // namespace

const Primitives& NeonPrimitives() {
  static constexpr Primitives table =
      Kernels<NeonVector<MullDot>>::Table(Isa::kNeon);
  return table;
}

}  // namespace kvlab
