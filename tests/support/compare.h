/// \file
/// Comparing float arrays in tests. A NaN on either side is always a failure.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace kvlab {

/// Succeeds if all elements have equal bits; else tells how many differ, and
/// index and both values of the first and the worst.
inline testing::AssertionResult SameBits(std::span<const float> a,
                                         std::span<const float> b) {
  if (a.size() != b.size()) {
    return testing::AssertionFailure()
           << "sizes " << a.size() << " and " << b.size();
  }
  std::size_t differing = 0, first = 0, worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = std::bit_cast<std::uint32_t>(a[i]) ==
                          std::bit_cast<std::uint32_t>(b[i]) &&
                      !std::isnan(a[i]);
    if (same) continue;
    if (differing++ == 0) first = worst = i;
    if (!(std::fabs(a[i] - b[i]) <= std::fabs(a[worst] - b[worst]))) worst = i;
  }
  if (differing == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << std::hexfloat << differing << " of " << a.size()
         << " elements differ; first [" << first << "]: " << a[first]
         << " against " << b[first] << "; worst [" << worst << "]: " << a[worst]
         << " against " << b[worst];
}

/// Succeeds if max|a - b| <= tolerance * max|b|; else tells the worst index.
template <typename Reference>
testing::AssertionResult WithinRelativeMax(std::span<const float> a,
                                           std::span<const Reference> b,
                                           double tolerance) {
  if (a.size() != b.size() || a.empty()) {
    return testing::AssertionFailure()
           << "sizes " << a.size() << " and " << b.size();
  }
  double error = 0, largest = 0;
  std::size_t worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(double{a[i]} - double{b[i]});
    if (!(difference <= error)) {  // NaN too
      error = difference;
      worst = i;
    }
    largest = std::fmax(largest, std::fabs(double{b[i]}));
  }
  if (error <= tolerance * largest) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "max|a - b| / max|b| = " << error / largest << ", allowed "
         << tolerance << "; worst [" << worst << "]: " << a[worst]
         << " against " << b[worst];
}

/// Succeeds if the Euclidean length of a - b is at most tolerance times that of
/// b.
inline testing::AssertionResult WithinRelativeL2(std::span<const float> a,
                                                 std::span<const float> b,
                                                 double tolerance) {
  if (a.size() != b.size() || a.empty()) {
    return testing::AssertionFailure()
           << "sizes " << a.size() << " and " << b.size();
  }
  double error = 0, length = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = double{a[i]} - double{b[i]};
    error += difference * difference;
    length += double{b[i]} * b[i];
  }
  const double relative = std::sqrt(error / length);
  if (relative <= tolerance) return testing::AssertionSuccess();  // NaN is not
  return testing::AssertionFailure()
         << "|a - b| / |b| = " << relative << ", allowed " << tolerance;
}

/// `n` normal deviates, the same on every machine with the same library.
inline std::vector<float> RandomFloats(std::size_t n, std::uint32_t seed,
                                       float sigma = 1.0f) {
  std::mt19937 random(seed);
  std::vector<float> x(n);
  for (float& value : x) {
    // Sum of 12 uniform deviates: near enough to normal, exactly repeatable.
    float sum = -6;
    for (int i = 0; i < 12; ++i) {
      sum += static_cast<float>(random() >> 8) * 0x1p-24f;
    }
    value = sigma * sum;
  }
  return x;
}

}  // namespace kvlab
