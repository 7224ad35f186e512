#include "common/base/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvlab {
namespace {

TEST(BFloat16, IsTheUpperHalfOfAFloat) {
  EXPECT_EQ(ToFloat(BFloat16{0x3F80}), 1.0f);
  EXPECT_EQ(ToFloat(BFloat16{0xC049}), -3.140625f);
  EXPECT_EQ(ToFloat(BFloat16{0x0001}), 0x1p-133f);  // subnormal
  EXPECT_TRUE(std::signbit(ToFloat(BFloat16{0x8000})));
  EXPECT_TRUE(std::isinf(ToFloat(BFloat16{0x7F80})));
}

/// Every bit pattern against the format's definition, in double.
TEST(Float16, AllPatterns) {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31);
    const double fraction = bits & 1023;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    const float value = ToFloat(Float16{static_cast<std::uint16_t>(bits)});
    if (exponent == 31) {
      if (fraction == 0) {
        EXPECT_EQ(value, sign * std::numeric_limits<double>::infinity());
      } else {
        EXPECT_TRUE(std::isnan(value)) << bits;
      }
      continue;
    }
    const double expected =
        exponent == 0 ? sign * std::ldexp(fraction, -24)
                      : sign * std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(double{value}, expected) << "bits " << bits;
    ASSERT_EQ(std::signbit(value), sign < 0) << "bits " << bits;
  }
}

}  // namespace
}  // namespace kvlab
