/// \file
/// Lesson 10-1: the time of attention against the length of the context, exact
/// and sparse, on caches of random numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/parallel.h"
#include "day10_sparse/sparse_topk.h"

namespace kvlab {

/// What is measured: one token of one layer.
struct ScalingOptions {
  int head_dim = 128;
  int heads = 4;     ///< query heads
  int kv_heads = 2;  ///< heads of the cache
  bool cold = true;  ///< the cache comes from memory, as in a decode step
  int rounds = 15;
  bool pack_probes = true;  ///< probed keys are kept packed
  SparseOptions sparse = {};
};

/// Two ways at one length: the median over the rounds.
struct ScalingPoint {
  int tokens = 0;
  int blocks = 0;
  /// The sparse stage attended over all blocks.
  bool ran_exact = false;

  /// Seconds a token: `online_softmax` on f32, `q8_single_pass`, `sparse_topk`
  /// on q8.
  double exact_f32 = 0;
  double exact_q8 = 0;
  double sparse = 0;
  /// The steps of the sparse stage, seconds of all threads.
  double probe = 0;
  double select = 0;
  double attend = 0;
  /// exact_q8 / sparse of one round: median, quartiles.
  double gain = 0;
  double gain_low = 0;
  double gain_high = 0;

  /// Bytes that must be read: K and V; probed keys; K and V of the blocks that
  /// at least one head of a group chose.
  std::int64_t f32_bytes = 0;
  std::int64_t q8_bytes = 0;
  std::int64_t probe_bytes = 0;
  std::int64_t chosen_bytes = 0;

  /// What the sparse stage could gain over exact q8 if only bytes counted.
  double ByteLimit() const {
    return static_cast<double>(q8_bytes) /
           static_cast<double>(probe_bytes + chosen_bytes);
  }
};

/// Median seconds of `body(turn)` over `rounds` + 1 turns, the first of which
/// only warms up.
double MedianSeconds(int rounds,
                     const std::function<void(std::int64_t turn)>& body);

/// Measures one length. `check` is called between rounds and may throw. Throws
/// Error if the caches do not fit in memory.
ScalingPoint MeasureScaling(const ScalingOptions& options, int tokens,
                            const Primitives& primitives, ThreadPool& pool,
                            const std::function<void()>& check);

/// The length from which on sparse attention is the faster one, at every
/// measured length, interpolated between the two around it on a logarithmic
/// scale; 0: faster everywhere; -1: nowhere. Points by ascending length.
double Crossover(std::span<const ScalingPoint> points);

}  // namespace kvlab
