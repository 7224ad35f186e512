#include "common/engine/rope.h"

#include <cmath>

#include "common/base/deterministic_math.h"
#include "common/base/error.h"

namespace kvlab {

RopeTable::RopeTable(double theta, int head_dim) {
  for (int i = 0; i < head_dim / 2; ++i) {
    inverse_frequency_.push_back(InverseFrequency(theta, i, head_dim));
  }
}

void RopeTable::Prepare(int first, int count) {
  first_ = first;
  cos_.clear();
  sin_.clear();
  for (int p = first; p < first + count; ++p) {
    for (const float f : inverse_frequency_) {
      const float angle = static_cast<float>(p) * f;
      cos_.push_back(Cos(angle));
      sin_.push_back(Sin(angle));
    }
  }
}

void RopeTable::Apply(float* x, int position) const {
  const std::size_t half = inverse_frequency_.size();
  const std::size_t row = static_cast<std::size_t>(position - first_) * half;
  KVLAB_CHECK(position >= first_ && row + half <= cos_.size());
  for (std::size_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    const float c = cos_[row + i];
    const float s = sin_[row + i];
    x[i] = std::fma(a, c, -(b * s));
    x[i + half] = std::fma(b, c, a * s);
  }
}

}  // namespace kvlab
