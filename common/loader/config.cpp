#include "common/loader/config.h"

#include <array>
#include <cmath>
#include <string>

#include "common/base/error.h"
#include "common/loader/json.h"

namespace kvlab {
namespace {

/// Every family this engine computes. What is not in a row is the same for all.
constexpr std::array kFamilies = {
    ModelFamily{
        .model_type = "qwen3", .qk_norm = true, .default_head_dim = 128},
};

// Upper bounds of the sizes: several times the largest open model, and small
// enough that every product of two of them, in bytes, fits 64 bits.
constexpr int kMaxVocab = 1 << 22;
constexpr int kMaxHidden = 1 << 17;
constexpr int kMaxIntermediate = 1 << 20;
constexpr int kMaxLayers = 1024;
constexpr int kMaxHeads = 1024;
constexpr int kMaxHeadDim = 1024;
constexpr int kMaxPositions = 1 << 20;  // Sin and Cos, so RoPE, end there

const ModelFamily& FindFamily(const JsonFields& fields) {
  const std::string type = fields.String("model_type");
  std::string known;
  for (const ModelFamily& family : kFamilies) {
    if (family.model_type == type) return family;
    known += StrCat(known.empty() ? "" : " or ", '"', family.model_type, '"');
  }
  fields.Refuse("model_type", known, StrCat('"', Printable(type), '"'));
}

/// Refuses what would change the computation and is not implemented: better no
/// answer than one of another model.
void RefuseUnsupported(const JsonFields& fields) {
  const std::string act = fields.Find("hidden_act") == nullptr
                              ? "silu"
                              : fields.String("hidden_act");
  if (act != "silu") {
    fields.Refuse("hidden_act", "\"silu\"", StrCat('"', Printable(act), '"'));
  }
  for (const char* field : {"attention_bias", "use_sliding_window"}) {
    if (fields.BoolOr(field, false)) {
      fields.Refuse(field, "false (true is not supported)", "true");
    }
  }
  if (const Json* quantization = fields.FindNonNull("quantization_config")) {
    fields.Refuse("quantization_config",
                  "no such field (use the unquantised model)",
                  JsonText(*quantization));
  }
  const Json* layer_types = fields.FindNonNull("layer_types");
  if (layer_types == nullptr) return;
  if (!layer_types->is_array()) {
    fields.Refuse("layer_types", "a list", JsonText(*layer_types));
  }
  for (const Json& type : *layer_types) {
    if (type != "full_attention") {
      fields.Refuse("layer_types", "\"full_attention\" for every layer",
                    JsonText(type));
    }
  }
}

/// Refuses an object that asks for scaled RoPE frequencies; type "default" is
/// plain RoPE. Older files call the field `type`.
void RequirePlainRope(const JsonFields& rope) {
  for (const char* field : {"rope_type", "type"}) {
    if (rope.Find(field) == nullptr) continue;
    const std::string type = rope.String(field);
    if (type != "default") {
      rope.Refuse(field, "\"default\" (scaled RoPE is not supported)",
                  StrCat('"', Printable(type), '"'));
    }
  }
  if (rope.FindNonNull("partial_rotary_factor") != nullptr &&
      rope.Positive("partial_rotary_factor") != 1) {
    rope.Refuse("partial_rotary_factor", "1",
                JsonText(*rope.Find("partial_rotary_factor")));
  }
}

/// rope_theta of one object. RoPE's wavelengths grow from pair to pair, so the
/// base is above 1.
double ReadTheta(const JsonFields& fields) {
  constexpr std::string_view kField = "rope_theta";
  const double theta = fields.Positive(kField);
  if (theta <= 1) {
    fields.Refuse(kField, "a number above 1", JsonText(*fields.Find(kField)));
  }
  return theta;
}

/// rope_theta, which transformers 5 moved into the object rope_parameters.
double ReadRopeTheta(const JsonFields& fields, const std::string& where) {
  if (const Json* scaling = fields.FindNonNull("rope_scaling")) {
    if (!scaling->is_object()) {
      fields.Refuse("rope_scaling", "null", JsonText(*scaling));
    }
    const JsonFields rope(*scaling, where, "rope_scaling.");
    RequirePlainRope(rope);
    if (rope.Find("rope_type") == nullptr && rope.Find("type") == nullptr) {
      fields.Refuse("rope_scaling", "null", "an object without rope_type");
    }
  }
  const Json* parameters = fields.FindNonNull("rope_parameters");
  if (parameters == nullptr) return ReadTheta(fields);
  if (!parameters->is_object()) {
    fields.Refuse("rope_parameters", "an object", JsonText(*parameters));
  }
  const JsonFields rope(*parameters, where, "rope_parameters.");
  RequirePlainRope(rope);
  if (rope.Find("rope_theta") == nullptr) return ReadTheta(fields);
  const double theta = ReadTheta(rope);
  // Library versions disagree on which of the two they read.
  if (fields.Find("rope_theta") != nullptr && ReadTheta(fields) != theta) {
    fields.Refuse("rope_theta",
                  StrCat("the same as rope_parameters.rope_theta, ", theta),
                  JsonText(*fields.Find("rope_theta")));
  }
  return theta;
}

float ReadEpsilon(const JsonFields& fields) {
  const auto eps = static_cast<float>(fields.Positive("rms_norm_eps"));
  if (!(eps > 0) || !std::isfinite(eps)) {  // 1e-300 is 0 as a float
    fields.Refuse("rms_norm_eps", "a positive number that fits a 32-bit float",
                  JsonText(*fields.Find("rms_norm_eps")));
  }
  return eps;
}

int ReadHeadDim(const JsonFields& fields, const ModelConfig& config) {
  constexpr std::string_view kField = "head_dim";
  int fallback = config.family->default_head_dim;
  if (fallback == 0) {
    if (fields.Find(kField) == nullptr &&
        config.hidden_size % config.heads != 0) {
      fields.Refuse("hidden_size",
                    StrCat("a multiple of num_attention_heads, ", config.heads,
                           ", as there is no head_dim"),
                    std::to_string(config.hidden_size));
    }
    fallback = config.hidden_size / config.heads;
  }
  const int head_dim = fields.IntOr(kField, fallback, 2, kMaxHeadDim);
  if (head_dim % 2 != 0) {  // RoPE turns pairs
    fields.Refuse(kField, "an even number", std::to_string(head_dim));
  }
  return head_dim;
}

/// The ids of `eos_token_id`; empty if the field is absent or null.
std::vector<int> EosIds(const JsonFields& fields, int vocab_size) {
  constexpr std::string_view kField = "eos_token_id";
  const Json* value = fields.FindNonNull(kField);
  if (value == nullptr) return {};
  const Json list = value->is_array() ? *value : Json::array({*value});
  std::vector<int> ids;
  for (const Json& id : list) {
    // Int64 holds every id that could be in range; the parser keeps larger
    // ones as unsigned or as floats.
    const bool in_range = id.is_number_integer() && id >= 0 && id < vocab_size;
    if (!in_range) {
      fields.Refuse(kField,
                    StrCat("an id, or a list of ids, of 0 to ", vocab_size - 1),
                    JsonText(id));
    }
    ids.push_back(id.get<int>());
  }
  return ids;
}

}  // namespace

ModelConfig ReadModelConfig(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "config.json";
  const std::string where = PathText(path);
  const Json json = ReadJsonFile(path);
  const JsonFields fields(json, where);

  ModelConfig config;
  config.family = &FindFamily(fields);
  RefuseUnsupported(fields);
  config.vocab_size = fields.Int("vocab_size", 1, kMaxVocab);
  config.hidden_size = fields.Int("hidden_size", 1, kMaxHidden);
  config.intermediate_size =
      fields.Int("intermediate_size", 1, kMaxIntermediate);
  config.layers = fields.Int("num_hidden_layers", 1, kMaxLayers);
  config.heads = fields.Int("num_attention_heads", 1, kMaxHeads);
  config.kv_heads = fields.Int("num_key_value_heads", 1, kMaxHeads);
  if (config.heads % config.kv_heads != 0) {
    fields.Refuse("num_key_value_heads",
                  StrCat("a divisor of num_attention_heads, ", config.heads),
                  std::to_string(config.kv_heads));
  }
  config.head_dim = ReadHeadDim(fields, config);
  config.rms_norm_eps = ReadEpsilon(fields);
  config.rope_theta = ReadRopeTheta(fields, where);
  config.tie_word_embeddings = fields.BoolOr("tie_word_embeddings", false);
  config.max_position_embeddings =
      fields.Int("max_position_embeddings", 1, kMaxPositions);
  config.trained_context =
      fields.IntOr("kvlab_trained_context", config.max_position_embeddings, 1,
                   config.max_position_embeddings);
  return config;
}

std::vector<int> ReadEosIds(const std::filesystem::path& directory,
                            int vocab_size) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = directory / name;
    if (!HasEntry(path)) continue;
    const Json json = ReadJsonFile(path);
    std::vector<int> ids = EosIds(JsonFields(json, PathText(path)), vocab_size);
    if (!ids.empty()) return ids;
  }
  return {};
}

}  // namespace kvlab
