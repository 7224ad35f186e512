/// \file
/// Online softmax (lesson 8-2): a softmax over scores that arrive tile by tile.
///
/// Three-pass attention needs the largest score before it can weight the first
/// value. Online softmax weights each tile with the largest score *so far*, M,
/// and corrects what it has when a larger one comes:
///
///     exp(score - M_new) = exp(score - M_old) * exp(M_old - M_new)
///
/// so one factor c = exp(M_old - M_new), at most 1, repairs all earlier weights
/// at once: it multiplies their sum S and the weighted sum of values acc.
/// Nothing of size n is stored. (Milakov and Gimelshein, "Online normalizer
/// calculation for softmax", 2018; the state of FlashAttention, 2022.)
#pragma once

#include <span>
#include <vector>

#include "common/simd/primitives.h"

namespace kvlab {

/// What one tile did to the state: for traces.
struct OnlineStep {
  float M_before = 0;     ///< largest score before the tile; M if it is first
  float factor = 1;       ///< c, 1 where nothing was rescaled
  bool rescaled = false;  ///< a larger score came (the first tile never does)
};

/// The running softmax of one query over the values of one KV head.
struct OnlineSoftmax {
  /// A state that has seen no token; acc gets `stride` zeros.
  explicit OnlineSoftmax(int stride)
      : acc(static_cast<std::size_t>(stride), 0.0f) {}

  /// Takes the scores of the next tile, 1 to 32 tokens, and turns them into
  /// weights exp(score - M). The caller then adds the weighted values to acc.
  OnlineStep Weigh(const Primitives& primitives, std::span<float> scores);

  float M = 0;             ///< largest score so far
  float S = 0;             ///< sum of exp(score - M) so far
  std::vector<float> acc;  ///< [stride] sum of exp(score - M) * V so far
  bool empty = true;       ///< no tile yet
};

}  // namespace kvlab
