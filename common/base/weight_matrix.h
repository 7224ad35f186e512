/// \file
/// A view of a weight matrix where it lies in the model file.
#pragma once

#include <cstdint>

namespace kvlab {

/// Element types that weights are stored in; they are used in place.
enum class WeightType { kF32, kF16, kBF16 };

/// A row-major matrix [rows, cols] somewhere in a mapped file. y = W x takes
/// x[cols] to y[rows], so every output is the dot of x with one row.
struct WeightMatrix {
  const void* data = nullptr;
  WeightType type = WeightType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

}  // namespace kvlab
