/// \file
/// The parts of a decoder layer beside attention.
#pragma once

#include <cstdint>
#include <span>

#include "common/base/parallel.h"
#include "common/base/weight_matrix.h"
#include "common/simd/primitives.h"

namespace kvlab {

/// out[i] = x[i] / sqrt(mean(x^2) + eps) * gain[i] over one row. out may be x.
/// Throws Error if the mean is not finite.
/// (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.)
void RmsNorm(const Primitives& primitives, std::span<const float> x,
             std::span<const float> gain, float eps, float* out);

/// out[t][r] = x[t] . w[r]: x [tokens][cols] to out [tokens][rows], both dense.
/// Threads share out the rows of w; each output is one dot in the defined
/// order, so neither the thread count nor the batch changes a bit.
void Matmul(ThreadPool& pool, const Primitives& primitives,
            std::span<const float> x, int tokens, const WeightMatrix& w,
            float* out);

}  // namespace kvlab
