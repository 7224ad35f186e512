#include "common/lab/dump.h"

#include <cstdint>

#include "common/loader/safetensors_writer.h"

namespace kvlab {
namespace {

void Append(std::vector<float>& to, std::span<const float> from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::vector<std::int32_t> ToInt32(std::span<const int> ids) {
  return {ids.begin(), ids.end()};
}

}  // namespace

void DumpRecorder::OnScores(const HeadId& id, std::span<const float> scores) {
  if (id.position == prompt_tokens_) Append(scores_, scores);
}

void DumpRecorder::OnWeights(const HeadId& id, std::span<const float> weights,
                             float /*max*/, float /*total*/) {
  if (id.position == prompt_tokens_) Append(weights_, weights);
}

void DumpRecorder::OnAttention(int /*layer*/, int /*position*/,
                               std::span<const float> out) {
  Append(attention_, out);
}

void DumpRecorder::OnLogits(int /*position*/, std::span<const float> logits) {
  Append(logits_, logits);
}

void DumpRecorder::Write(OutputFile& file,
                         const std::map<std::string, std::string>& metadata,
                         std::span<const int> prompt,
                         std::span<const int> tokens) const {
  const std::uint64_t layers = config_.layers;
  const std::uint64_t heads = config_.heads;
  const std::uint64_t head_dim = config_.head_dim;
  const std::uint64_t vocab = config_.vocab_size;
  const std::vector<std::int32_t> prompt_ids = ToInt32(prompt);
  const std::vector<std::int32_t> token_ids = ToInt32(tokens);

  std::vector<TensorToWrite> tensors = {
      {.name = "attention",
       .dtype = Dtype::kF32,
       .shape = {attention_.size() / (layers * heads * head_dim), layers, heads,
                 head_dim},
       .bytes = std::as_bytes(std::span(attention_))},
      {.name = "logits",
       .dtype = Dtype::kF32,
       .shape = {logits_.size() / vocab, vocab},
       .bytes = std::as_bytes(std::span(logits_))}};
  const auto add_rows = [&](const char* name, const std::vector<float>& rows) {
    if (rows.empty()) return;
    tensors.push_back({.name = name,
                       .dtype = Dtype::kF32,
                       .shape = {layers, heads, rows.size() / (layers * heads)},
                       .bytes = std::as_bytes(std::span(rows))});
  };
  add_rows("scores", scores_);
  add_rows("weights", weights_);
  const auto add_ids = [&](const char* name,
                           const std::vector<std::int32_t>& ids) {
    tensors.push_back({.name = name,
                       .dtype = Dtype::kI32,
                       .shape = {ids.size()},
                       .bytes = std::as_bytes(std::span(ids))});
  };
  add_ids("prompt_tokens", prompt_ids);
  add_ids("tokens", token_ids);
  WriteSafetensors(file, metadata, tensors);
}

}  // namespace kvlab
