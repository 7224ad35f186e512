/// \file
/// A whole model directory in miniature, made by the tests that need one.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/loader/byte_level.h"
#include "common/loader/safetensors_writer.h"
#include "tests/loader/temp_dir.h"

namespace kvlab {

/// A model with head_dim != hidden / heads, so that no size stands for another.
constexpr int kVocab = 300, kHidden = 6, kInner = 10, kLayers = 2;
constexpr int kHeads = 4, kKvHeads = 2, kHeadDim = 8;

/// Its config.json.
inline nlohmann::json Config(bool tied) {
  return {{"model_type", "qwen3"},
          {"vocab_size", kVocab},
          {"hidden_size", kHidden},
          {"intermediate_size", kInner},
          {"num_hidden_layers", kLayers},
          {"num_attention_heads", kHeads},
          {"num_key_value_heads", kKvHeads},
          {"head_dim", kHeadDim},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000},
          {"tie_word_embeddings", tied},
          {"max_position_embeddings", 64}};
}

/// Tensors to be written, with the bytes they point at.
class TensorSet {
 public:
  /// A tensor of f32 values seed, seed + 1, ... (kept by reference to its
  /// bytes: a deque does not move them).
  void Add(const std::string& name, std::vector<std::uint64_t> shape,
           Dtype dtype = Dtype::kF32) {
    std::uint64_t count = 1;
    for (const auto size : shape) count *= size;
    std::string& bytes = data_.emplace_back();
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(next_ + i);
      char raw[8] = {};
      std::memcpy(raw, &value, sizeof value);
      // BF16 is the upper half of F32; other types get its bytes as they come.
      const std::size_t size = static_cast<std::size_t>(DtypeBits(dtype)) / 8;
      bytes.append(dtype == Dtype::kBF16 ? raw + 2 : raw, size);
    }
    next_ += 1;
    tensors_[name] = {name, dtype, std::move(shape),
                      std::as_bytes(std::span(bytes.data(), bytes.size()))};
  }
  void Remove(const std::string& name) {
    ASSERT_EQ(tensors_.erase(name), 1u) << name;
  }
  /// Those whose name `choose` accepts, in the order of their names.
  template <typename Choose>
  std::vector<TensorToWrite> Pick(Choose choose) const {
    std::vector<TensorToWrite> picked;
    for (const auto& [name, tensor] : tensors_) {
      if (choose(name)) picked.push_back(tensor);
    }
    return picked;
  }
  std::vector<TensorToWrite> All() const {
    return Pick([](const std::string&) { return true; });
  }

 private:
  std::deque<std::string> data_;
  std::map<std::string, TensorToWrite> tensors_;
  std::uint64_t next_ = 1;
};

/// The name of a tensor of layer `i`.
inline std::string Layer(int i, const char* name) {
  return StrCat("model.layers.", i, ".", name, ".weight");
}

/// Its tensors; the values of the n-th start with n.
inline TensorSet AllTensors(Dtype dtype = Dtype::kF32) {
  TensorSet set;
  set.Add("model.embed_tokens.weight", {kVocab, kHidden}, dtype);
  for (int i = 0; i < kLayers; ++i) {
    set.Add(Layer(i, "input_layernorm"), {kHidden}, dtype);
    set.Add(Layer(i, "self_attn.q_proj"), {kHeads * kHeadDim, kHidden}, dtype);
    set.Add(Layer(i, "self_attn.k_proj"), {kKvHeads * kHeadDim, kHidden},
            dtype);
    set.Add(Layer(i, "self_attn.v_proj"), {kKvHeads * kHeadDim, kHidden},
            dtype);
    set.Add(Layer(i, "self_attn.o_proj"), {kHidden, kHeads * kHeadDim}, dtype);
    set.Add(Layer(i, "self_attn.q_norm"), {kHeadDim}, dtype);
    set.Add(Layer(i, "self_attn.k_norm"), {kHeadDim}, dtype);
    set.Add(Layer(i, "post_attention_layernorm"), {kHidden}, dtype);
    set.Add(Layer(i, "mlp.gate_proj"), {kInner, kHidden}, dtype);
    set.Add(Layer(i, "mlp.up_proj"), {kInner, kHidden}, dtype);
    set.Add(Layer(i, "mlp.down_proj"), {kHidden, kInner}, dtype);
  }
  set.Add("model.norm.weight", {kHidden}, dtype);
  return set;
}

/// tokenizer.json: byte b is id b, then " f" and " fo" as merges, then two
/// special tokens; `extra` unused added tokens more.
inline nlohmann::json TinyTokenizer(int extra = 0) {
  nlohmann::json vocab = nlohmann::json::object();
  for (int b = 0; b < 256; ++b) {
    vocab[ToByteLevel(std::string(1, static_cast<char>(b)))] = b;
  }
  vocab["\u0120f"] = 256;
  vocab["\u0120fo"] = 257;
  nlohmann::json added = nlohmann::json::array();
  const auto add = [&](const std::string& content) {
    added.push_back({{"id", 258 + added.size()},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  };
  add("<|im_start|>");
  add("<|im_end|>");
  for (int i = 0; i < extra; ++i) add(StrCat("<|extra_", i, "|>"));
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer",
           {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocab},
            {"merges", {"\u0120 f", "\u0120f o"}}}}};
}
constexpr int kImStart = 258, kImEnd = 259;

/// A ChatML template as models ship it.
constexpr const char* kChatMlJinja =
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Writes all files of the model into `directory`.
inline void WriteTinyModel(const std::filesystem::path& directory) {
  WriteFile(directory / "config.json", Config(true).dump());
  WriteFile(directory / "generation_config.json",
            nlohmann::json{{"eos_token_id", {kImEnd, 0}}}.dump());
  WriteFile(directory / "tokenizer.json", TinyTokenizer().dump());
  WriteFile(directory / "tokenizer_config.json",
            nlohmann::json{{"chat_template", kChatMlJinja}}.dump());
  WriteSafetensors(directory / "model.safetensors", {{"format", "pt"}},
                   AllTensors().All());
}

}  // namespace kvlab
