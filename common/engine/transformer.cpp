#include "common/engine/transformer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/base/error.h"
#include "common/base/float16.h"
#include "common/engine/layers.h"

namespace kvlab {
namespace {

/// Row `row` of a weight matrix, widened to f32.
void ReadRow(const WeightMatrix& w, std::int64_t row, float* out) {
  const std::int64_t first = row * w.cols;
  for (std::int64_t i = 0; i < w.cols; ++i) {
    switch (w.type) {
      case WeightType::kF32:
        out[i] = static_cast<const float*>(w.data)[first + i];
        break;
      case WeightType::kF16:
        out[i] = ToFloat(static_cast<const Float16*>(w.data)[first + i]);
        break;
      case WeightType::kBF16:
        out[i] = ToFloat(static_cast<const BFloat16*>(w.data)[first + i]);
        break;
    }
  }
}

void Resize(std::vector<float>& v, std::int64_t size) {
  v.resize(static_cast<std::size_t>(size));
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const Weights& weights,
                         const Primitives& primitives, ThreadPool& pool)
    : config_(config),
      weights_(weights),
      primitives_(primitives),
      pool_(pool),
      rope_(config.rope_theta, config.head_dim) {}

KvCacheShape Transformer::CacheShape(KvFormat format, int capacity) const {
  return {.format = format,
          .layers = config_.layers,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .capacity = capacity};
}

void Transformer::Embed(std::span<const int> tokens, int first_position) {
  rope_.Prepare(first_position, static_cast<int>(tokens.size()));
  const std::int64_t hidden = config_.hidden_size;
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t heads_dim = std::int64_t{config_.heads} * config_.head_dim;
  const std::int64_t kv_dim = std::int64_t{config_.kv_heads} * config_.head_dim;
  Resize(x_, count * hidden);
  Resize(h_, count * hidden);
  Resize(sum_, count * hidden);
  Resize(q_, count * heads_dim);
  Resize(queries_, count * config_.heads * QueryStride(config_.head_dim));
  Resize(k_, count * kv_dim);
  Resize(v_, count * kv_dim);
  Resize(attention_, count * heads_dim);
  Resize(gate_, count * config_.intermediate_size);
  Resize(up_, count * config_.intermediate_size);
  for (std::int64_t t = 0; t < count; ++t) {
    const int token = tokens[t];
    if (token < 0 || token >= config_.vocab_size) {
      Fail("token id ", token, " is outside the model's vocabulary of ",
           config_.vocab_size, "; tokenizer and model do not belong together");
    }
    ReadRow(weights_.embedding, token, &x_[t * hidden]);
  }
}

void Transformer::Norm(std::span<const float> gain, int count) {
  const std::int64_t hidden = config_.hidden_size;
  for (int t = 0; t < count; ++t) {
    RmsNorm(primitives_, {&x_[t * hidden], gain.size()}, gain,
            config_.rms_norm_eps, &h_[t * hidden]);
  }
}

void Transformer::AddMatmul(std::span<const float> x, const WeightMatrix& w,
                            int count) {
  Matmul(pool_, primitives_, x, count, w, sum_.data());
  for (std::size_t i = 0; i < x_.size(); ++i) x_[i] += sum_[i];
}

void Transformer::Layer(int layer, int count, KvCache& cache,
                        const std::function<void()>& attend) {
  const LayerWeights& w = weights_.layers[layer];
  const int d = config_.head_dim;
  const int first = cache.tokens();  // this layer's too, until Append

  Norm(w.input_norm, count);
  Matmul(pool_, primitives_, h_, count, w.q, q_.data());
  Matmul(pool_, primitives_, h_, count, w.k, k_.data());
  Matmul(pool_, primitives_, h_, count, w.v, v_.data());

  const auto normalise_and_turn = [&](float* row, std::span<const float> gain,
                                      int position) {
    if (!gain.empty()) {
      RmsNorm(primitives_, {row, gain.size()}, gain, config_.rms_norm_eps, row);
    }
    rope_.Apply(row, position);
  };
  const int stride = QueryStride(d);
  for (int t = 0; t < count; ++t) {
    for (int head = 0; head < config_.heads; ++head) {
      const std::int64_t row = std::int64_t{t} * config_.heads + head;
      normalise_and_turn(&q_[row * d], w.q_norm, first + t);
      std::copy_n(&q_[row * d], d, &queries_[row * stride]);
    }
    for (int head = 0; head < config_.kv_heads; ++head) {
      const std::int64_t row = std::int64_t{t} * config_.kv_heads + head;
      normalise_and_turn(&k_[row * d], w.k_norm, first + t);
    }
  }
  cache.Append(layer, k_, v_, count);

  attend();
  AddMatmul(attention_, w.o, count);

  Norm(w.post_attention_norm, count);
  Matmul(pool_, primitives_, h_, count, w.gate, gate_.data());
  Matmul(pool_, primitives_, h_, count, w.up, up_.data());
  primitives_.silu_mul(gate_.data(), up_.data(),
                       static_cast<std::int64_t>(gate_.size()), gate_.data());
  AddMatmul(gate_, w.down, count);
}

std::span<const float> Transformer::Logits(std::span<const float> hidden,
                                           float* out) {
  Resize(h_, static_cast<std::int64_t>(hidden.size()));
  RmsNorm(primitives_, hidden, weights_.final_norm, config_.rms_norm_eps,
          h_.data());
  Matmul(pool_, primitives_, h_, 1, weights_.lm_head, out);
  const std::span<const float> logits(
      out, static_cast<std::size_t>(config_.vocab_size));
  for (const float x : logits) {
    if (!std::isfinite(x)) {
      Fail("a logit is not finite (", x,
           "); the weights of the model are damaged or overflow float32");
    }
  }
  return logits;
}

std::span<const float> Transformer::Prefill(std::span<const int> tokens,
                                            KvCache& cache,
                                            AttentionStage& stage,
                                            const PrefillOptions& options) {
  KVLAB_CHECK(!tokens.empty());
  KVLAB_CHECK_GE(options.chunk, 1);
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t vocab = config_.vocab_size;
  const auto total = static_cast<std::int64_t>(tokens.size());
  Resize(logits_, vocab);
  if (options.all_logits != nullptr) {
    Resize(*options.all_logits, total * vocab);
  }
  for (std::int64_t begin = 0; begin < total; begin += options.chunk) {
    const auto count =
        static_cast<int>(std::min<std::int64_t>(options.chunk, total - begin));
    const int first = cache.tokens();
    Embed(tokens.subspan(begin, count), first);
    for (int layer = 0; layer < config_.layers; ++layer) {
      Layer(layer, count, cache, [&] {
        const auto group_of = [&](std::int64_t kv_head) {
          const auto head = static_cast<int>(kv_head) * config_.group();
          const PrefillInput input{
              .layer = layer,
              .first_head = head,
              .first_position = first,
              .count = count,
              .group = config_.group(),
              .queries = queries_.data() + head * QueryStride(config_.head_dim),
              .position_stride =
                  std::int64_t{config_.heads} * QueryStride(config_.head_dim),
              .kv = cache.View(layer, static_cast<int>(kv_head))};
          ImportanceSink sink;
          if (options.importance != nullptr) {
            sink = options.importance->Sink(layer, head);
          }
          stage.Prefill(input, options.importance != nullptr ? &sink : nullptr,
                        {.data = attention_.data() + head * config_.head_dim,
                         .position_stride =
                             std::int64_t{config_.heads} * config_.head_dim});
        };
        pool_.ParallelFor(config_.kv_heads, 1,
                          [&](std::int64_t a, std::int64_t b) {
                            for (; a < b; ++a) group_of(a);
                          });
      });
      if (options.progress) {
        const double share = static_cast<double>(layer + 1) / config_.layers;
        options.progress((static_cast<double>(begin) + share * count) /
                         static_cast<double>(total));
      }
    }
    if (options.all_logits != nullptr) {
      for (int t = 0; t < count; ++t) {
        Logits({&x_[t * hidden], static_cast<std::size_t>(hidden)},
               options.all_logits->data() + (begin + t) * vocab);
      }
    }
  }
  const std::span<const float> last(x_.end() - hidden, x_.end());
  const std::span<const float> logits = Logits(last, logits_.data());
  if (options.observer != nullptr) {
    options.observer->OnLogits(cache.tokens() - 1, logits);
  }
  return logits;
}

std::span<const float> Transformer::Decode(int token, KvCache& cache,
                                           AttentionStage& stage,
                                           const DecodeOptions& options) {
  using Clock = std::chrono::steady_clock;
  const int position = cache.tokens();
  Resize(logits_, config_.vocab_size);
  attention_ms_ = 0;
  Embed({&token, 1}, position);
  for (int layer = 0; layer < config_.layers; ++layer) {
    Layer(layer, 1, cache, [&] {
      const auto start = Clock::now();
      const int stride = QueryStride(config_.head_dim);
      const auto group_of = [&](std::int64_t kv_head) {
        const auto head = static_cast<int>(kv_head) * config_.group();
        const std::size_t group = config_.group();
        const AttendInput input{
            .layer = layer,
            .first_head = head,
            .position = position,
            .group = config_.group(),
            .queries = {&queries_[std::int64_t{head} * stride], group * stride},
            .kv = cache.View(layer, static_cast<int>(kv_head)),
            .importance = options.importance};
        stage.Attend(input,
                     {&attention_[std::int64_t{head} * config_.head_dim],
                      group * config_.head_dim},
                     options.observer);
      };
      // An observer is told of one head after another.
      const std::int64_t grain =
          options.observer != nullptr ? config_.kv_heads : 1;
      pool_.ParallelFor(config_.kv_heads, grain,
                        [&](std::int64_t a, std::int64_t b) {
                          for (; a < b; ++a) group_of(a);
                        });
      attention_ms_ +=
          std::chrono::duration<double, std::milli>(Clock::now() - start)
              .count();
    });
    if (options.observer != nullptr) {
      options.observer->OnAttention(layer, position, attention_);
    }
  }
  const std::span<const float> logits = Logits(x_, logits_.data());
  if (options.observer != nullptr) {
    options.observer->OnLogits(position, logits);
  }
  return logits;
}

}  // namespace kvlab
