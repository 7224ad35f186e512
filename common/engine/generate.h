/// \file
/// Greedy generation: prefill, then one token after another.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "common/engine/transformer.h"

namespace kvlab {

/// How to generate.
struct GenerateOptions {
  int max_tokens = 40;                 ///< >= 1
  std::span<const int> stop_ids = {};  ///< generation ends with any of them
  int prefill_chunk = 512;
  bool record_importance = false;  ///< for stages that select by it
  Observer* observer = nullptr;
  std::function<void(double done)> progress = {};  ///< of prefill; may throw
  std::function<void(int token)> on_token = {};    ///< may throw to stop
};

/// What came out.
struct Generation {
  std::vector<int> tokens;  ///< generated, without the stop token
  bool stopped = false;     ///< a stop token ended it, not max_tokens
  double prefill_s = 0;
  std::vector<double> attention_ms;  ///< per decode step, in the stage
  std::vector<double> total_ms;      ///< per decode step, all of it
};

/// Index of the largest logit, the smallest index among equals.
int Argmax(std::span<const float> logits);

/// Runs the prompt (at least one token) through the model and continues it
/// greedily. Clears the cache first; it must have room for prompt + max_tokens.
Generation Generate(Transformer& transformer, KvCache& cache,
                    AttentionStage& stage, std::span<const int> prompt,
                    const GenerateOptions& options);

}  // namespace kvlab
