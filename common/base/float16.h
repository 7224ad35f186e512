/// \file
/// The two 16-bit float formats that model files hold, as plain bit patterns.
///
/// bfloat16 is the upper half of a float32. float16 (IEEE binary16) has 5
/// exponent and 10 fraction bits. Both widen to float32 without rounding, so
/// every instruction set gives the same bits.
#pragma once

#include <bit>
#include <cstdint>

namespace kvlab {

/// A bfloat16 or float16 bit pattern as it lies in a file.
struct BFloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

/// Exact float32 value of a bfloat16.
inline float ToFloat(BFloat16 x) {
  return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}

/// Exact float32 value of a float16, subnormals and infinities included.
inline float ToFloat(Float16 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000u} << 16;
  const std::uint32_t exponent = (x.bits >> 10) & 0x1Fu;
  const std::uint32_t fraction = x.bits & 0x3FFu;
  if (exponent == 0x1F) {  // infinity, or NaN (made quiet, as hardware does)
    const std::uint32_t quiet = fraction != 0 ? 0x00400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | quiet | fraction << 13);
  }
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace kvlab
