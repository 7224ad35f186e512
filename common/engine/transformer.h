/// \file
/// The decoder's forward pass.
///
///     x = embedding[token]
///     for each layer:
///       h = RmsNorm(x);  q, k, v = Wq h, Wk h, Wv h
///       q, k = RmsNorm per head (Qwen3), then RoPE
///       the KV cache takes k and v
///       x += Wo * attention(q, cache)          <- the stage of the lesson
///       h = RmsNorm(x);  x += Wdown (silu(Wgate h) * Wup h)      (SwiGLU)
///     logits = Wlm_head RmsNorm(x)
///
/// Weights stay in the model file (f32, f16 or bf16), activations are f32.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "common/attention/attention_stage.h"
#include "common/base/parallel.h"
#include "common/engine/importance.h"
#include "common/engine/kv_cache.h"
#include "common/engine/rope.h"
#include "common/loader/config.h"
#include "common/loader/weights.h"

namespace kvlab {

/// What a prefill may record and how it runs.
struct PrefillOptions {
  int chunk = 512;  ///< tokens at a time, >= 1; changes no result
  ImportanceRecord* importance = nullptr;
  std::vector<float>* all_logits = nullptr;  ///< [tokens][vocab], for tests
  Observer* observer = nullptr;              ///< sees the last logits
  /// Called between layers with the share done, 0 ... 1; may throw to stop.
  std::function<void(double done)> progress = {};
};

/// What a decode step may record.
struct DecodeOptions {
  std::span<const double> importance = {};  ///< handed to the stage
  Observer* observer = nullptr;
};

/// A model ready to run. Holds no token: the KvCache does. One forward pass at
/// a time.
class Transformer {
 public:
  /// Keeps references to all arguments.
  Transformer(const ModelConfig& config, const Weights& weights,
              const Primitives& primitives, ThreadPool& pool);

  /// The shape of a cache for this model.
  KvCacheShape CacheShape(KvFormat format, int capacity) const;

  /// Appends the tokens (at least one) to the cache. Attention is
  /// stage.Prefill. Returns the logits after the last token, [vocab], valid
  /// until the next call. Throws Error on a token id outside the vocabulary
  /// and on numbers that are not finite.
  std::span<const float> Prefill(std::span<const int> tokens, KvCache& cache,
                                 AttentionStage& stage,
                                 const PrefillOptions& options);

  /// The same for one token with stage.Attend.
  std::span<const float> Decode(int token, KvCache& cache,
                                AttentionStage& stage,
                                const DecodeOptions& options);

  const ModelConfig& config() const { return config_; }

  /// Wall time that the last Decode spent in the stage, in milliseconds.
  double last_attention_ms() const { return attention_ms_; }

 private:
  /// The part of a layer between its two norms; `attend` fills attention_ from
  /// queries_ once the cache holds this layer's new keys and values.
  void Layer(int layer, int count, KvCache& cache,
             const std::function<void()>& attend);
  void Embed(std::span<const int> tokens, int first_position);
  void Norm(std::span<const float> gain, int count);
  void AddMatmul(std::span<const float> x, const WeightMatrix& w, int count);
  std::span<const float> Logits(std::span<const float> hidden, float* out);

  const ModelConfig& config_;
  const Weights& weights_;
  const Primitives& primitives_;
  ThreadPool& pool_;
  RopeTable rope_;
  double attention_ms_ = 0;

  // Activations of the tokens in flight, rows dense.
  std::vector<float> x_;          // [count][hidden], the residual stream
  std::vector<float> h_;          // [count][hidden], after a norm
  std::vector<float> q_;          // [count][heads * head_dim]
  std::vector<float> queries_;    // [count][heads][QueryStride]
  std::vector<float> k_, v_;      // [count][kv_heads * head_dim]
  std::vector<float> attention_;  // [count][heads * head_dim]
  std::vector<float> gate_, up_;  // [count][intermediate]
  std::vector<float> sum_;        // [count][hidden]
  std::vector<float> logits_;     // [vocab]
};

}  // namespace kvlab
