/// \file
/// Rotary position embedding (RoPE), the rotate-half pairing of Hugging Face.
#pragma once

#include <vector>

namespace kvlab {

/// cos and sin of every position's angles, computed once.
///
/// Pair i of a head of d elements is (x[i], x[i + d/2]); position p turns it by
/// the angle p * theta^(-2i/d). Queries and keys turned so have a dot product
/// that depends on the distance of their positions alone. (Su et al.,
/// "RoFormer", 2021.)
class RopeTable {
 public:
  /// Angles for positions 0 ... positions - 1. The inverse frequency is
  /// correctly rounded to f32, the angle is an f32 product; sin and cos are our
  /// own, so the table has the same bits everywhere.
  RopeTable(double theta, int head_dim, int positions);

  /// Turns a row x[head_dim] in place.
  void Apply(float* x, int position) const;

 private:
  int half_;
  int positions_;
  std::vector<float> cos_;  // [positions][half]
  std::vector<float> sin_;
};

}  // namespace kvlab
