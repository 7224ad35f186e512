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
  std::vector<int> tokens = {};  ///< generated, without the stop token
  bool stopped = false;          ///< a stop token ended it, not max_tokens
  double prefill_s = 0;
  std::vector<double> attention_ms = {};  ///< per decode step, in the stage
  std::vector<double> total_ms = {};      ///< per decode step, all of it
};

/// Index of the largest logit, the smallest index among equals.
int Argmax(std::span<const float> logits);

/// A prompt after prefill, from which several stages may go on.
struct ReadPrompt {
  int tokens = 0;                       ///< of the prompt, in the cache
  std::vector<float> logits = {};       ///< after the last of them
  std::vector<double> importance = {};  ///< of each; empty if not recorded
  double prefill_s = 0;
};

/// Runs the prompt (at least one token) through the model. Clears the cache
/// first.
ReadPrompt Prefill(Transformer& transformer, KvCache& cache,
                   AttentionStage& stage, std::span<const int> prompt,
                   const GenerateOptions& options);

/// Continues a prompt greedily. What the cache holds beyond the prompt is
/// forgotten first; it must have room for max_tokens more. Another stage than
/// the one that read the prompt must have had its BeginPrompt.
Generation Continue(Transformer& transformer, KvCache& cache,
                    AttentionStage& stage, const ReadPrompt& prompt,
                    const GenerateOptions& options);

/// Both, one after the other.
Generation Generate(Transformer& transformer, KvCache& cache,
                    AttentionStage& stage, std::span<const int> prompt,
                    const GenerateOptions& options);

}  // namespace kvlab
