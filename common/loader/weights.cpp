#include "common/loader/weights.h"

#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "common/base/float16.h"
#include "common/loader/json.h"
#include "common/loader/model_files.h"

namespace kvlab {
namespace {

constexpr std::string_view kHeadName = "lm_head.weight";

/// A tensor to be read and where it goes: a matrix or a norm's gain.
struct Slot {
  ModelTensor tensor;
  WeightMatrix* matrix = nullptr;
  std::vector<float>* gain = nullptr;
};

/// Lists the tensors of a decoder under the names that Hugging Face gives them.
class SlotList {
 public:
  SlotList(const ModelConfig& config, bool own_head, Weights* weights) {
    const auto vocab = Size(config.vocab_size);
    const auto hidden = Size(config.hidden_size);
    weights->layers.resize(Size(config.layers));
    Matrix("model.embed_tokens.weight", {vocab, hidden}, ModelPart::kEmbedding,
           &weights->embedding);
    for (std::size_t i = 0; i < weights->layers.size(); ++i) {
      AddLayer(config, StrCat("model.layers.", i, "."), &weights->layers[i]);
    }
    Gain("model.norm.weight", hidden, &weights->final_norm);
    if (own_head) {
      Matrix(std::string(kHeadName), {vocab, hidden}, ModelPart::kHead,
             &weights->lm_head);
    }
  }

  const std::vector<Slot>& slots() const { return slots_; }

 private:
  static std::uint64_t Size(int n) { return static_cast<std::uint64_t>(n); }

  void AddLayer(const ModelConfig& config, const std::string& prefix,
                LayerWeights* layer) {
    const auto hidden = Size(config.hidden_size);
    const auto inner = Size(config.intermediate_size);
    const auto head_dim = Size(config.head_dim);
    const auto q_rows = Size(config.heads) * head_dim;
    const auto kv_rows = Size(config.kv_heads) * head_dim;
    const auto attention = [&](const char* name, std::uint64_t rows,
                               std::uint64_t cols, WeightMatrix* matrix) {
      Matrix(StrCat(prefix, "self_attn.", name, ".weight"), {rows, cols},
             ModelPart::kAttention, matrix);
    };
    const auto mlp = [&](const char* name, std::uint64_t rows,
                         std::uint64_t cols, WeightMatrix* matrix) {
      Matrix(StrCat(prefix, "mlp.", name, ".weight"), {rows, cols},
             ModelPart::kFeedForward, matrix);
    };
    Gain(prefix + "input_layernorm.weight", hidden, &layer->input_norm);
    attention("q_proj", q_rows, hidden, &layer->q);
    attention("k_proj", kv_rows, hidden, &layer->k);
    attention("v_proj", kv_rows, hidden, &layer->v);
    if (config.family->qk_norm) {
      Gain(prefix + "self_attn.q_norm.weight", head_dim, &layer->q_norm);
      Gain(prefix + "self_attn.k_norm.weight", head_dim, &layer->k_norm);
    }
    attention("o_proj", hidden, q_rows, &layer->o);
    Gain(prefix + "post_attention_layernorm.weight", hidden,
         &layer->post_attention_norm);
    mlp("gate_proj", inner, hidden, &layer->gate);
    mlp("up_proj", inner, hidden, &layer->up);
    mlp("down_proj", hidden, inner, &layer->down);
  }

  void Matrix(std::string name, std::vector<std::uint64_t> shape,
              ModelPart part, WeightMatrix* matrix) {
    slots_.push_back({{std::move(name), std::move(shape), part}, matrix});
  }
  void Gain(std::string name, std::uint64_t size, std::vector<float>* gain) {
    slots_.push_back(
        {{std::move(name), {size}, ModelPart::kNorm}, nullptr, gain});
  }

  std::vector<Slot> slots_;
};

/// A file with a head of its own means it, even where the config says tied:
/// some were fine-tuned untied and kept the old flag.
bool HasOwnHead(const ModelConfig& config, const ModelFiles& files) {
  return !config.tie_word_embeddings || files.Find(kHeadName) != nullptr;
}

void CheckNoneMissing(const std::vector<Slot>& slots, const ModelFiles& files,
                      bool head_tied) {
  std::size_t missing = 0;
  const ModelTensor* first = nullptr;
  for (const Slot& slot : slots) {
    if (files.Find(slot.tensor.name) != nullptr) continue;
    if (missing++ == 0) first = &slot.tensor;
  }
  if (missing == 0) return;
  const bool only_head = missing == 1 && first->name == kHeadName && !head_tied;
  Fail(PathText(files.directory()), ": tensor \"", first->name,
       "\" is missing, expected ", ShapeText(first->shape), " (", missing,
       " of ", slots.size(), " tensors missing); ",
       only_head ? "if the head is the embedding itself, config.json must say "
                   "tie_word_embeddings: true"
                 : "do config.json and the weights belong together?");
}

std::optional<WeightType> TypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return WeightType::kF32;
    case Dtype::kF16:
      return WeightType::kF16;
    case Dtype::kBF16:
      return WeightType::kBF16;
    default:
      return std::nullopt;
  }
}

/// The tensor of that name, its shape checked, and its type.
std::pair<const TensorInfo*, WeightType> Take(const ModelTensor& expected,
                                              const ModelFiles& files) {
  const TensorInfo* info = files.Find(expected.name);
  KVLAB_CHECK(info != nullptr);
  const std::string where = StrCat(PathText(files.PathOf(*info)), ": tensor \"",
                                   Printable(info->name), '"');
  if (info->shape != expected.shape) {
    Fail(where, ": expected ", ShapeText(expected.shape),
         " from the sizes in config.json, found ", ShapeText(info->shape));
  }
  const auto type = TypeOf(info->dtype);
  if (!type) {
    Fail(where, ": expected F32, F16 or BF16, found ", DtypeName(info->dtype));
  }
  return {info, *type};
}

/// One element, wherever it lies.
float ElementAt(const std::byte* data, WeightType type, std::size_t i) {
  if (type == WeightType::kF32) {
    float value = 0;
    std::memcpy(&value, data + 4 * i, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, data + 2 * i, sizeof bits);
  return type == WeightType::kF16 ? ToFloat(Float16{bits})
                                  : ToFloat(BFloat16{bits});
}

}  // namespace

std::vector<ModelTensor> ModelTensors(const ModelConfig& config,
                                      const ModelFiles& files) {
  Weights unused;
  const SlotList list(config, HasOwnHead(config, files), &unused);
  std::vector<ModelTensor> tensors;
  for (const Slot& slot : list.slots()) tensors.push_back(slot.tensor);
  return tensors;
}

Weights BuildWeights(const ModelConfig& config, ModelFiles* files) {
  Weights weights;
  const bool own_head = HasOwnHead(config, *files);
  const SlotList list(config, own_head, &weights);
  CheckNoneMissing(list.slots(), *files, config.tie_word_embeddings);
  for (const Slot& slot : list.slots()) {
    const auto [info, type] = Take(slot.tensor, *files);
    if (slot.matrix != nullptr) {
      const std::size_t alignment = type == WeightType::kF32 ? 4 : 2;
      *slot.matrix = {files->Aligned(*info, alignment), type,
                      static_cast<std::int64_t>(info->shape[0]),
                      static_cast<std::int64_t>(info->shape[1])};
    } else {
      slot.gain->resize(static_cast<std::size_t>(info->Elements()));
      for (std::size_t i = 0; i < slot.gain->size(); ++i) {
        (*slot.gain)[i] = ElementAt(info->bytes.data(), type, i);
      }
    }
  }
  if (!own_head) weights.lm_head = weights.embedding;
  return weights;
}

}  // namespace kvlab
