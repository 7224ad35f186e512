/// \file
/// config.json of a Hugging Face model directory, checked.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// What distinguishes one family of decoders from another. Everything else
/// is the same program for all of them; a new family is a new row of the table
/// in config.cpp.
struct ModelFamily {
  std::string_view model_type;  ///< as in config.json, e.g. "qwen3"
  bool qk_norm;  ///< RMSNorm over each head's query and key before RoPE
  /// head_dim where config.json does not say: this number, or hidden_size /
  /// heads if it is 0. As Hugging Face's configuration class of the family.
  int default_head_dim;
};

/// The sizes and constants of a decoder.
struct ModelConfig {
  const ModelFamily* family = nullptr;
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int layers = 0;
  int heads = 0;     ///< query heads
  int kv_heads = 0;  ///< divides heads; query head h reads KV head h / group()
  int head_dim = 0;  ///< need not be hidden_size / heads; even
  float rms_norm_eps = 0;
  double rope_theta = 0;
  bool tie_word_embeddings = false;
  int max_position_embeddings = 0;
  /// Longest context seen in training where the file says so (field
  /// kvlab_trained_context of the lab model), else max_position_embeddings.
  int trained_context = 0;

  /// Query heads that share one KV head (GQA).
  int group() const { return heads / kv_heads; }
};

/// Reads and checks `directory/config.json`. Throws Error naming file, field,
/// what was expected and what was found.
ModelConfig ReadModelConfig(const std::filesystem::path& directory);

/// The ids that end a generation: eos_token_id, a number or a list, of
/// generation_config.json where that has one, else of config.json; empty if
/// neither has. Throws Error unless all are in [0, vocab_size).
std::vector<int> ReadEosIds(const std::filesystem::path& directory,
                            int vocab_size);

}  // namespace kvlab
