/// \file
/// Dumps: what a stage computed, as a safetensors file: numpy, PyTorch and
/// other programs read it.
///
/// | tensor          | shape                               |
/// |-----------------|-------------------------------------|
/// | `attention`     | F32 [step, layer, head, head_dim]   |
/// | `logits`        | F32 [step + 1, vocab]               |
/// | `scores`        | F32 [layer, head, token]            |
/// | `weights`       | F32 [layer, head, token]            |
/// | `prompt_tokens` | I32 [token]                         |
/// | `tokens`        | I32 [token]                         |
///
/// A step is one decode step. Row 0 of `logits` chose the first token (from
/// prefill), row i + 1 is what step i computed. `scores` and `weights` (before
/// division by their total) belong to step 0, whose queries see every prompt
/// token and the first answer token. The file holds nothing that depends on the
/// machine: the same settings give the same bytes on any of them.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/attention/observer.h"
#include "common/loader/config.h"
#include "common/loader/output_file.h"

namespace kvlab {

/// Collects while a generation runs; attach it as the observer.
class DumpRecorder final : public Observer {
 public:
  /// `prompt_tokens` is the length of the prompt.
  DumpRecorder(const ModelConfig& config, int prompt_tokens)
      : config_(config), prompt_tokens_(prompt_tokens) {}

  void OnScores(const HeadId& id, std::span<const float> scores) override;
  void OnWeights(const HeadId& id, std::span<const float> weights, float max,
                 float total) override;
  void OnAttention(int layer, int position,
                   std::span<const float> out) override;
  void OnLogits(int position, std::span<const float> logits) override;

  /// Writes the file; Commit() is left to the caller. `metadata` goes in as it
  /// is; tensors that this stage never materialises are named in its
  /// "not_materialised". Throws Error.
  void Write(OutputFile& file,
             const std::map<std::string, std::string>& metadata,
             std::span<const int> prompt, std::span<const int> tokens) const;

 private:
  const ModelConfig& config_;
  int prompt_tokens_;
  std::vector<float> attention_, logits_, scores_, weights_;
};

}  // namespace kvlab
