#include "common/base/deterministic_math.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "common/base/error.h"

namespace kvlab {
namespace {

/// 2^n as a float, -126 <= n <= 127.
float PowerOfTwo(std::int32_t n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}

/// Nearest integer, ties to even, for |x| < 2^51.
double RoundToInteger(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

/// 1/k! for the Taylor series below.
constexpr std::array<double, 20> InverseFactorials() {
  std::array<double, 20> f{};
  double factorial = 1;
  f[0] = 1;
  for (int k = 1; k < 20; ++k) {
    factorial *= k;
    f[static_cast<std::size_t>(k)] = 1 / factorial;
  }
  return f;
}
constexpr std::array<double, 20> kInverseFactorial = InverseFactorials();

/// 1 / (2 i + 1) for the series of artanh.
constexpr std::array<double, 13> InverseOdds() {
  std::array<double, 13> f{};
  for (std::size_t i = 0; i < f.size(); ++i) {
    f[i] = 1 / static_cast<double>(2 * i + 1);
  }
  return f;
}
constexpr std::array<double, 13> kInverseOdd = InverseOdds();

/// sum of x2^j * (-1)^j / (first + 2 j)! for j = 0 ... terms - 1.
double AlternatingSeries(double x2, int first, int terms) {
  double sum = 0;
  for (int j = terms - 1; j >= 0; --j) {
    const double c = kInverseFactorial[static_cast<std::size_t>(first + 2 * j)];
    sum = sum * -x2 + c;
  }
  return sum;
}

/// sin(x + quarters * pi/2) in double.
double SinShifted(float x, std::int64_t quarters) {
  // pi/2 in three parts; the first two have 33 bits, so that their products
  // with n < 2^20 are exact (Cody and Waite's reduction).
  constexpr double kHigh = 0x1.921fb544p+0;
  constexpr double kMiddle = 0x1.0b4611a6p-34;
  constexpr double kLow = 0x1.3198a2e037073p-69;
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  KVLAB_CHECK(std::fabs(x) <= 0x1p20f);
  const double n = RoundToInteger(double{x} * kTwoOverPi);
  const double r = ((double{x} - n * kHigh) - n * kMiddle) - n * kLow;
  // |r| <= pi/4: nine terms leave an error below 1e-17.
  const std::int64_t quadrant = (static_cast<std::int64_t>(n) + quarters) & 3;
  const double value = (quadrant & 1) != 0
                           ? AlternatingSeries(r * r, 0, 9)       // cos r
                           : r * AlternatingSeries(r * r, 1, 9);  // sin r
  return (quadrant & 2) != 0 ? -value : value;
}

}  // namespace

float Exp(float x) {
  using namespace exp_constants;
  // Written so that NaN stays NaN: the constant wins only a true comparison.
  x = kLowest > x ? kLowest : x;
  x = kHighest < x ? kHighest : x;
  if (x != x) return x;
  const float n = std::fma(x, kLog2E, kRound) - kRound;
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = kP[4];
  for (int i = 3; i >= 0; --i) p = std::fma(p, r, kP[i]);
  p = std::fma(p, r * r, r) + 1.0f;
  // 2^n in two factors: the first product is exact, the second rounds once
  // into the subnormals or overflows to infinity.
  const auto exponent = static_cast<std::int32_t>(n);
  const std::int32_t half = exponent >> 1;
  return p * PowerOfTwo(half) * PowerOfTwo(exponent - half);
}

double LogDouble(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);  // exact
  if (m < 0.70710678) {
    m *= 2;
    --exponent;
  }
  // ln m = 2 artanh(s), |s| < 0.172.
  const double s = (m - 1) / (m + 1);
  double sum = 0;
  for (int i = 12; i >= 0; --i) {
    sum = sum * (s * s) + kInverseOdd[static_cast<std::size_t>(i)];
  }
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  return 2 * s * sum + exponent * kLn2;
}

double ExpDouble(double x) {
  if (x != x) return x;
  x = std::clamp(x, -800.0, 800.0);  // 0 and infinity, by ldexp
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLn2High = 0x1.62e42feep-1;  // 32 bits: n * it is exact
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const double n = RoundToInteger(x * kLog2E);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 0;
  for (int k = 16; k >= 0; --k) {
    sum = sum * r + kInverseFactorial[static_cast<std::size_t>(k)];
  }
  return std::ldexp(sum, static_cast<int>(n));  // exact if normal
}

float Sin(float x) { return static_cast<float>(SinShifted(x, 0)); }

float Cos(float x) { return static_cast<float>(SinShifted(x, 1)); }

float InverseFrequency(double theta, int pair, int dim) {
  KVLAB_CHECK(theta > 1 && pair >= 0 && 2 * pair < dim);
  const double exponent = 2.0 * pair / dim;
  return static_cast<float>(ExpDouble(-exponent * LogDouble(theta)));
}

}  // namespace kvlab
