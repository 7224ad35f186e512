/// \file
/// The weight files of a model directory and the tensors that a decoder takes
/// from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/loader/config.h"
#include "common/loader/safetensors.h"
#include "common/loader/weights.h"

namespace kvlab {

/// model.safetensors of a directory, or the shards that its
/// model.safetensors.index.json names, all open and checked.
class ModelFiles {
 public:
  /// Opens the files. As in Hugging Face's library, model.safetensors wins if
  /// there is an index too. Throws Error if there is neither, if the index is
  /// broken, names a file outside the directory, an absent shard (all absent
  /// names in one message), or a shard without a tensor it should hold, or if
  /// two shards hold the same tensor.
  static std::shared_ptr<ModelFiles> Open(
      const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }

  /// nullptr if no file has a tensor of that name.
  const TensorInfo* Find(std::string_view name) const;
  /// The file that holds `tensor`, which Find returned, for messages.
  const std::filesystem::path& PathOf(const TensorInfo& tensor) const;
  /// Tensors in all files together.
  std::size_t tensor_count() const { return by_name_.size(); }

  /// The bytes of `tensor` at an address that is a multiple of `alignment`:
  /// the mapped bytes themselves, or else a copy that lives as long as this
  /// object (files whose header was not padded start their data anywhere, and
  /// reading a float from an odd address is undefined).
  const void* Aligned(const TensorInfo& tensor, std::size_t alignment);

 private:
  struct Place {
    std::size_t file;
    const TensorInfo* tensor;
  };
  ModelFiles() = default;
  void OpenShards(const std::filesystem::path& index);
  void AddFile(const std::filesystem::path& path);

  std::filesystem::path directory_;
  std::vector<SafetensorsFile> files_;
  std::unordered_map<std::string_view, Place> by_name_;  // keys in files_
  std::vector<std::unique_ptr<std::byte[]>> copies_;
};

/// What part of a decoder a tensor belongs to.
enum class ModelPart { kEmbedding, kAttention, kFeedForward, kNorm, kHead };

/// A tensor that a decoder of some config reads.
struct ModelTensor {
  std::string name;
  std::vector<std::uint64_t> shape;
  ModelPart part;
};

/// All tensors that LoadWeights takes from `files`, in the order in which a
/// token passes them. lm_head.weight is among them if the files have it or if
/// the config does not tie it to the embedding.
std::vector<ModelTensor> ModelTensors(const ModelConfig& config,
                                      const ModelFiles& files);

/// The weights of `config` in `files`, which must outlive them: matrices stay
/// where they lie (see ModelFiles::Aligned), norm gains are widened to f32.
/// Throws Error on a tensor that is missing, has another shape than the config
/// asks for, or is not F32, F16 or BF16. Other tensors are ignored.
Weights BuildWeights(const ModelConfig& config, ModelFiles* files);

}  // namespace kvlab
