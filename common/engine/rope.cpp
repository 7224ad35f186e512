#include "common/engine/rope.h"

#include <cmath>

#include "common/base/deterministic_math.h"
#include "common/base/error.h"

namespace kvlab {

RopeTable::RopeTable(double theta, int head_dim, int positions)
    : half_(head_dim / 2), positions_(positions) {
  std::vector<float> inverse_frequency;
  for (int i = 0; i < half_; ++i) {
    inverse_frequency.push_back(InverseFrequency(theta, i, head_dim));
  }
  const auto size = static_cast<std::size_t>(positions) * half_;
  cos_.reserve(size);
  sin_.reserve(size);
  for (int p = 0; p < positions; ++p) {
    for (const float f : inverse_frequency) {
      const float angle = static_cast<float>(p) * f;
      cos_.push_back(Cos(angle));
      sin_.push_back(Sin(angle));
    }
  }
}

void RopeTable::Apply(float* x, int position) const {
  KVLAB_CHECK(position >= 0 && position < positions_);
  const float* c = &cos_[static_cast<std::size_t>(position) * half_];
  const float* s = &sin_[static_cast<std::size_t>(position) * half_];
  for (int i = 0; i < half_; ++i) {
    const float a = x[i];
    const float b = x[i + half_];
    x[i] = std::fma(a, c[i], -(b * s[i]));
    x[i + half_] = std::fma(b, c[i], a * s[i]);
  }
}

}  // namespace kvlab
