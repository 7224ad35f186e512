#include "common/base/deterministic_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/support/tensors.h"

namespace kvlab {
namespace {

/// Distance of `value` from `exact` in units of the last place of the float
/// next to `exact` (2^-149 among the subnormals).
double UlpError(float value, double exact) {
  int exponent = 0;
  std::frexp(exact, &exponent);
  const double ulp = std::ldexp(1.0, std::max(exponent - 24, -149));
  return std::fabs(double{value} - exact) / ulp;
}

/// mpmath's values: tests/oracle/make_math_reference.py.
class MathReference : public testing::Test {
 protected:
  SafetensorsFile file_ =
      SafetensorsFile::Open(FixturePath("math_reference.safetensors"));
};

TEST_F(MathReference, Exp) {
  const auto x = Values<float>(file_, "exp.x");
  const auto y = Values<double>(file_, "exp.y");
  ASSERT_GT(x.size(), 4000u);
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    // Half of the smallest subnormal and less rounds to nothing.
    if (y[i] < 0x1p-150) {
      EXPECT_EQ(Exp(x[i]), 0.0f) << x[i];
      continue;
    }
    const double error = UlpError(Exp(x[i]), y[i]);
    EXPECT_LT(error, 1.0) << "x " << x[i] << ", got " << Exp(x[i]) << ", exact "
                          << y[i];
    worst = std::fmax(worst, error);
  }
  // As documented in the header, neither more nor much less.
  EXPECT_GT(worst, 0.6);
}

TEST_F(MathReference, SinAndCos) {
  const auto x = Values<float>(file_, "sin.x");
  const auto sin_y = Values<double>(file_, "sin.y");
  const auto cos_y = Values<double>(file_, "cos.y");
  ASSERT_GT(x.size(), 4000u);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_LE(UlpError(Sin(x[i]), sin_y[i]), 0.501) << "sin " << x[i];
    EXPECT_LE(UlpError(Cos(x[i]), cos_y[i]), 0.501) << "cos " << x[i];
  }
}

TEST_F(MathReference, InverseFrequencyIsCorrectlyRounded) {
  const auto theta = Values<double>(file_, "inv_freq.theta");
  const auto dim = Values<std::int32_t>(file_, "inv_freq.dim");
  const auto pair = Values<std::int32_t>(file_, "inv_freq.i");
  const auto y = Values<float>(file_, "inv_freq.y");
  ASSERT_GT(y.size(), 1000u);
  for (std::size_t i = 0; i < y.size(); ++i) {
    EXPECT_EQ(InverseFrequency(theta[i], pair[i], dim[i]), y[i])
        << "theta " << theta[i] << ", dim " << dim[i] << ", pair " << pair[i];
  }
}

TEST(Exp, Edges) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp(0.0f), 1.0f);
  EXPECT_EQ(Exp(-0.0f), 1.0f);
  EXPECT_EQ(Exp(-kInfinity), 0.0f);
  EXPECT_EQ(Exp(-1e30f), 0.0f);
  EXPECT_EQ(Exp(-103.98f), 0.0f);
  EXPECT_EQ(Exp(-103.97f), 0x1p-149f);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Exp(88.73f), kInfinity);
  EXPECT_LT(Exp(88.72f), kInfinity);
  EXPECT_TRUE(std::isnan(Exp(std::nanf(""))));
}

/// Softmax wants exp to be monotone: a larger score never weighs less.
TEST(Exp, NeverFallsOnAllFloatsNearTheTop) {
  float last = 0;
  // Every 64th float of [-104, 0].
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(-104.0f);
       bits >= 0x80000000u + 64; bits -= 64) {
    const float value = Exp(std::bit_cast<float>(bits));
    ASSERT_GE(value, last) << std::bit_cast<float>(bits);
    last = value;
  }
  EXPECT_EQ(last, 1.0f);
}

/// Against the C library, which is off by less than 1 ulp (2.3e-16 relative).
TEST(ExpDouble, AgreesWithTheCLibrary) {
  double worst = 0;
  for (double x = -708; x <= 709; x += 0.0137) {
    const double y = std::exp(x);
    worst = std::max(worst, std::fabs(ExpDouble(x) - y) / y);
  }
  EXPECT_LE(worst, 1e-15 + 2.3e-16);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(ExpDouble(0), 1);
  EXPECT_EQ(ExpDouble(-746), 0);
  EXPECT_EQ(ExpDouble(-1e300), 0);
  EXPECT_EQ(ExpDouble(-kInfinity), 0);
  EXPECT_EQ(ExpDouble(710), kInfinity);
  EXPECT_EQ(ExpDouble(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(ExpDouble(std::nan(""))));
}

TEST(LogDouble, AgreesWithTheCLibrary) {
  double worst = 0;
  for (double x = 1e-300; x < 1e300; x *= 1.0137) {
    const double y = std::log(x);
    worst = std::max(worst,
                     std::fabs(LogDouble(x) - y) / std::max(1.0, std::fabs(y)));
  }
  for (double x = 0.5; x < 2; x += 0.000137) {
    worst = std::max(worst, std::fabs(LogDouble(x) - std::log(x)));
  }
  EXPECT_LE(worst, 1e-15 + 2.3e-16);
  EXPECT_EQ(LogDouble(1), 0);
}

TEST(SinCos, Edges) {
  EXPECT_EQ(Sin(0.0f), 0.0f);
  EXPECT_EQ(Cos(0.0f), 1.0f);
  EXPECT_EQ(Sin(-1.5f), -Sin(1.5f));
  EXPECT_EQ(Cos(-1.5f), Cos(1.5f));
}

}  // namespace
}  // namespace kvlab
