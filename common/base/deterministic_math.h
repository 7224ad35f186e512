/// \file
/// exp, sin, cos and RoPE's inverse frequencies with the same bits everywhere.
///
/// libm's results differ from version to version and from CPU to CPU, so none
/// of it is used. These functions consist of IEEE additions, multiplications
/// and fma in a fixed order; the vector forms in common/simd follow the same
/// steps. Errors, measured against a high-precision reference
/// (tests/base/deterministic_math_test.cpp):
///
/// | function       | range                | largest error      |
/// |----------------|----------------------|--------------------|
/// | Exp            | all floats           | below 1 ulp        |
/// | Sin, Cos       | |x| <= 2^20          | 0.501 ulp          |
/// | ExpDouble      | normal results       | 1e-15 relative     |
/// | LogDouble      | x > 0                | 1e-15 max(1, |ln x|) |
/// | InverseFrequency | theta 1e3 ... 1e8  | correctly rounded  |
#pragma once

#include <cstdint>

namespace kvlab {

/// The numbers that Exp and its vector forms share.
///
/// exp(x) = 2^n * exp(r), n = round(x / ln 2), r = x - n ln 2. ln 2 is split in
/// two so that n * kLn2High is exact. On |r| <= 0.35, exp(r) = 1 + r + r^2 P(r)
/// with the minimax polynomial P of degree 4 (relative error 3.3e-9).
namespace exp_constants {
inline constexpr float kLowest = -104.0f;  ///< exp(-104) rounds to 0
inline constexpr float kHighest = 89.0f;   ///< exp(89) is infinity
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kLn2High = 0x1.63p-1f;
inline constexpr float kLn2Low = -0x1.bd0106p-13f;
/// Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to
/// even, without an instruction that some CPU lacks.
inline constexpr float kRound = 0x1.8p23f;
inline constexpr float kP[5] = {0x1.fffffcp-2f, 0x1.55548ap-3f, 0x1.555916p-5f,
                                0x1.123fc6p-7f, 0x1.6a1a72p-10f};
}  // namespace exp_constants

/// e^x. Exactly 0 below -104, subnormal results where float has them, infinity
/// above 88.73, NaN for NaN. Less than 1 ulp off.
float Exp(float x);

/// sin(x) and cos(x), x in radians, |x| <= 2^20 (RoPE angles of a million
/// positions). At most 0.501 ulp off.
float Sin(float x);
float Cos(float x);

/// e^x in double, for measuring what floats get wrong: relative error below
/// 1e-15. 0 below -745.2, infinity above 709.8, NaN for NaN.
double ExpDouble(double x);

/// ln(x) in double, x > 0 and finite: error below 1e-15 times the larger of 1
/// and |ln(x)|.
double LogDouble(double x);

/// RoPE: theta^(-2 pair / dim), correctly rounded to f32. `pair` counts from 0
/// to dim / 2 - 1; theta > 1.
float InverseFrequency(double theta, int pair, int dim);

}  // namespace kvlab
