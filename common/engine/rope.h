/// \file
/// Rotary position embedding (RoPE), the rotate-half pairing of Hugging Face.
#pragma once

#include <vector>

namespace kvlab {

/// cos and sin of the angles of the positions in flight.
///
/// Pair i of a head of d elements is (x[i], x[i + d/2]); position p turns it by
/// the angle p * theta^(-2i/d). Queries and keys turned so have a dot product
/// that depends on the distance of their positions alone. (Su et al.,
/// "RoFormer", 2021.)
///
/// The inverse frequency is correctly rounded to f32, the angle is an f32
/// product; sin and cos are our own, so the angles have the same bits
/// everywhere.
class RopeTable {
 public:
  RopeTable(double theta, int head_dim);

  /// Computes the angles of positions first ... first + count - 1: once for all
  /// heads and layers of a forward pass.
  void Prepare(int first, int count);

  /// Turns a row x[head_dim] in place; `position` must have been prepared.
  void Apply(float* x, int position) const;

 private:
  int first_ = 0;
  std::vector<float> inverse_frequency_;  // [half]
  std::vector<float> cos_;                // [count][half]
  std::vector<float> sin_;
};

}  // namespace kvlab
