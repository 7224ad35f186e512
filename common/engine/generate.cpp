#include "common/engine/generate.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "common/base/error.h"

namespace kvlab {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
}

}  // namespace

int Argmax(std::span<const float> logits) {
  return static_cast<int>(std::max_element(logits.begin(), logits.end()) -
                          logits.begin());
}

ReadPrompt Prefill(Transformer& transformer, KvCache& cache,
                   AttentionStage& stage, std::span<const int> prompt,
                   const GenerateOptions& options) {
  const auto prompt_tokens = static_cast<int>(prompt.size());
  cache.Clear();
  stage.BeginPrompt();
  std::optional<ImportanceRecord> importance;
  if (options.record_importance) {
    const KvCacheShape& shape = cache.shape();
    importance.emplace(shape.layers, transformer.config().heads, prompt_tokens);
  }

  ReadPrompt result{.tokens = prompt_tokens};
  const auto start = Clock::now();
  const std::span<const float> logits =
      transformer.Prefill(prompt, cache, stage,
                          {.chunk = options.prefill_chunk,
                           .importance = importance ? &*importance : nullptr,
                           .observer = options.observer,
                           .progress = options.progress});
  result.prefill_s = MillisecondsSince(start) / 1000;
  result.logits.assign(logits.begin(), logits.end());
  if (importance) result.importance = importance->Total(prompt_tokens);
  return result;
}

Generation Continue(Transformer& transformer, KvCache& cache,
                    AttentionStage& stage, const ReadPrompt& prompt,
                    const GenerateOptions& options) {
  KVLAB_CHECK_GE(options.max_tokens, 1);
  cache.Truncate(prompt.tokens);
  Generation result{.prefill_s = prompt.prefill_s};
  std::span<const float> logits = prompt.logits;
  for (;;) {
    const int token = Argmax(logits);
    if (std::ranges::find(options.stop_ids, token) != options.stop_ids.end()) {
      result.stopped = true;
      return result;
    }
    result.tokens.push_back(token);
    if (options.on_token) options.on_token(token);
    if (std::ssize(result.tokens) == options.max_tokens) return result;

    const auto start = Clock::now();
    logits = transformer.Decode(
        token, cache, stage,
        {.importance = prompt.importance, .observer = options.observer});
    result.total_ms.push_back(MillisecondsSince(start));
    result.attention_ms.push_back(transformer.last_attention_ms());
  }
}

Generation Generate(Transformer& transformer, KvCache& cache,
                    AttentionStage& stage, std::span<const int> prompt,
                    const GenerateOptions& options) {
  return Continue(transformer, cache, stage,
                  Prefill(transformer, cache, stage, prompt, options), options);
}

}  // namespace kvlab
