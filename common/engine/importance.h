/// \file
/// How much attention each prompt token received in prefill.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/attention/attention_stage.h"

namespace kvlab {

/// Collects the probabilities that prompt queries gave each token, per layer
/// and query head, in double. For one layer and head the masses add up to the
/// number of queries. It does not depend on how the prompt was cut into chunks.
class ImportanceRecord {
 public:
  /// All zero, for a prompt of at most `capacity` tokens.
  ImportanceRecord(int layers, int heads, int capacity);

  /// Where Prefill adds for the group that starts at `first_head`.
  ImportanceSink Sink(int layer, int first_head);

  /// The masses of one layer and head, [capacity].
  std::span<const double> Head(int layer, int head) const;

  /// One number per token, [tokens]: the heads of a layer, then the next
  /// layer's, added in ascending order.
  std::vector<double> Total(int tokens) const;

 private:
  int heads_;
  int capacity_;
  std::vector<double> mass_;  // [layers][heads][capacity]
};

}  // namespace kvlab
