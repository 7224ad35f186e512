#include "common/loader/weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "common/loader/model.h"
#include "common/loader/model_files.h"
#include "common/loader/safetensors_writer.h"
#include "tests/loader/temp_dir.h"
#include "tests/loader/tiny_model.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;

class WeightsTest : public testing::Test {
 protected:
  void WriteConfig(bool tied = true) {
    WriteFile(dir_ / "config.json", Config(tied).dump());
  }
  void WriteModel(const TensorSet& set, bool tied = true) {
    WriteConfig(tied);
    WriteSafetensors(dir_ / "model.safetensors", {}, set.All());
  }
  void WriteIndex(const nlohmann::json& weight_map) {
    const nlohmann::json index = {{"metadata", {{"total_size", 1}}},
                                  {"weight_map", weight_map}};
    WriteFile(dir_ / "model.safetensors.index.json", index.dump());
  }
  /// Layers in one shard, the rest in the other; returns the weight_map.
  nlohmann::json WriteShards(const TensorSet& set) {
    nlohmann::json weight_map;
    const auto in_first = [](const std::string& name) {
      return name.find("layers") != std::string::npos;
    };
    for (const auto& tensor : set.All()) {
      weight_map[tensor.name] =
          in_first(tensor.name) ? "one.safetensors" : "two.safetensors";
    }
    WriteSafetensors(dir_ / "one.safetensors", {}, set.Pick(in_first));
    WriteSafetensors(
        dir_ / "two.safetensors", {},
        set.Pick([&](const std::string& name) { return !in_first(name); }));
    WriteConfig();
    WriteIndex(weight_map);
    return weight_map;
  }
  ModelWeights Load() { return LoadWeights(dir_.path()); }
  std::string LoadError() {
    return ErrorOf([&] { Load(); });
  }

  TempDir dir_;
};

/// Value of a float32 matrix at [row, col].
float At(const WeightMatrix& m, std::int64_t row, std::int64_t col) {
  EXPECT_EQ(m.type, WeightType::kF32);
  return static_cast<const float*>(m.data)[row * m.cols + col];
}

/// Checks that `weights` are AllTensors() in F32. A tensor's values begin with
/// its number in the order in which AllTensors adds them.
void ExpectAllTensors(const Weights& weights) {
  ASSERT_EQ(weights.layers.size(), 2u);
  const auto expect = [](const WeightMatrix& m, int rows, int cols, float at0) {
    EXPECT_EQ(m.rows, rows);
    EXPECT_EQ(m.cols, cols);
    EXPECT_EQ(At(m, 0, 0), at0);
    EXPECT_EQ(At(m, rows - 1, cols - 1),
              at0 + static_cast<float>(rows * cols - 1));
  };
  const auto expect_gain = [](const std::vector<float>& gain, int size,
                              float at0) {
    ASSERT_EQ(gain.size(), static_cast<std::size_t>(size));
    EXPECT_EQ(gain.front(), at0);
    EXPECT_EQ(gain.back(), at0 + static_cast<float>(size - 1));
  };
  expect(weights.embedding, kVocab, kHidden, 1);
  float n = 2;
  for (const LayerWeights& layer : weights.layers) {
    expect_gain(layer.input_norm, kHidden, n++);
    expect(layer.q, 32, kHidden, n++);
    expect(layer.k, 16, kHidden, n++);
    expect(layer.v, 16, kHidden, n++);
    expect(layer.o, kHidden, 32, n++);
    expect_gain(layer.q_norm, kHeadDim, n++);
    expect_gain(layer.k_norm, kHeadDim, n++);
    expect_gain(layer.post_attention_norm, kHidden, n++);
    expect(layer.gate, kInner, kHidden, n++);
    expect(layer.up, kInner, kHidden, n++);
    expect(layer.down, kHidden, kInner, n++);
  }
  expect_gain(weights.final_norm, kHidden, n);
}

TEST_F(WeightsTest, PutsEveryTensorInItsPlace) {
  WriteModel(AllTensors());
  const ModelWeights loaded = Load();
  ExpectAllTensors(loaded.weights);
  EXPECT_EQ(loaded.weights.lm_head.data, loaded.weights.embedding.data);
  EXPECT_EQ(loaded.weights.lm_head.rows, kVocab);
  // In place: the very bytes of the mapped file.
  const TensorInfo* q = loaded.files->Find(Layer(1, "self_attn.q_proj"));
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(loaded.weights.layers[1].q.data, q->bytes.data());
}

TEST_F(WeightsTest, ListsTheTensorsItTakes) {
  TensorSet set = AllTensors();
  set.Add("extra", {3}, Dtype::kI64);
  WriteModel(set);
  const ModelWeights loaded = Load();  // a tensor nobody needs harms nobody
  const auto tensors = ModelTensors(loaded.config, *loaded.files);
  EXPECT_EQ(tensors.size(), 2u + 11 * kLayers);
  EXPECT_EQ(loaded.files->tensor_count(), tensors.size() + 1);
  EXPECT_EQ(tensors.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(tensors.back().name, "model.norm.weight");
}

TEST_F(WeightsTest, WidensGainsAndKeepsHalves) {
  WriteModel(AllTensors(Dtype::kBF16));
  const ModelWeights loaded = Load();
  EXPECT_EQ(loaded.weights.layers[0].q.type, WeightType::kBF16);
  // Numbers below 257 have 8 bits: bfloat16 holds them exactly.
  EXPECT_EQ(loaded.weights.layers[0].input_norm,
            std::vector<float>({2, 3, 4, 5, 6, 7}));

  TensorSet set = AllTensors();
  set.Remove("model.norm.weight");
  const std::uint16_t halves[kHidden] = {0x3C00, 0xC000, 0x7BFF,
                                         0x0001, 0x0000, 0x3555};
  std::vector<TensorToWrite> tensors = set.All();
  tensors.push_back({"model.norm.weight",
                     Dtype::kF16,
                     {kHidden},
                     std::as_bytes(std::span(halves))});
  WriteSafetensors(dir_ / "model.safetensors", {}, tensors);
  EXPECT_EQ(Load().weights.final_norm,
            std::vector<float>({1, -2, 65504, 0x1p-24f, 0, 0x1.554p-2f}));
}

TEST_F(WeightsTest, CopiesTensorsThatAreNotAligned) {
  WriteModel(AllTensors());
  // The same file with one space more in the header: every tensor starts at an
  // odd address.
  const fs::path path = dir_ / "model.safetensors";
  std::string bytes = ReadFile(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  bytes.insert(static_cast<std::size_t>(8 + length), 1, ' ');
  ++length;
  std::memcpy(bytes.data(), &length, sizeof length);
  WriteFile(path, bytes);
  const ModelWeights loaded = Load();
  const auto address =
      reinterpret_cast<std::uintptr_t>(loaded.weights.layers[0].q.data);
  EXPECT_EQ(address % 4, 0u);
  ExpectAllTensors(loaded.weights);
}

TEST_F(WeightsTest, TakesTheRealHeadWhereThereIsOne) {
  TensorSet set = AllTensors();
  set.Add("lm_head.weight", {kVocab, kHidden});
  for (const bool tied : {true, false}) {
    WriteModel(set, tied);
    const ModelWeights loaded = Load();
    EXPECT_NE(loaded.weights.lm_head.data, loaded.weights.embedding.data);
    EXPECT_EQ(At(loaded.weights.lm_head, 0, 0), 25);
  }
}

TEST_F(WeightsTest, NeedsAHeadWhereItIsNotTied) {
  WriteModel(AllTensors(), false);
  const std::string error = LoadError();
  EXPECT_TRUE(Has(error, "tensor \"lm_head.weight\" is missing"));
  EXPECT_TRUE(Has(error, "tie_word_embeddings"));
}

TEST_F(WeightsTest, SaysHowManyAreMissing) {
  TensorSet set = AllTensors();
  set.Remove(Layer(1, "self_attn.q_norm"));
  set.Remove(Layer(1, "mlp.up_proj"));
  WriteModel(set);
  const std::string error = LoadError();
  EXPECT_TRUE(Has(error, dir_.path().string()));
  EXPECT_TRUE(Has(error, "model.layers.1.self_attn.q_norm.weight"));
  EXPECT_TRUE(Has(error, "expected [8] (2 of 24 tensors missing)"));
}

TEST_F(WeightsTest, RefusesAnotherShape) {
  // Qwen3-4B in small: hidden / heads is not head_dim. Only the element count
  // is the same.
  TensorSet set = AllTensors();
  set.Add(Layer(0, "self_attn.o_proj"), {kHeads * kHeadDim, kHidden});
  WriteModel(set);
  const std::string error = LoadError();
  EXPECT_TRUE(Has(error, (dir_ / "model.safetensors").string()));
  EXPECT_TRUE(Has(error, "\"model.layers.0.self_attn.o_proj.weight\""));
  EXPECT_TRUE(Has(error, "expected [6, 32]"));
  EXPECT_TRUE(Has(error, "found [32, 6]"));

  set = AllTensors();
  set.Add(Layer(0, "input_layernorm"), {kHidden, 1});
  WriteModel(set);
  EXPECT_TRUE(Has(LoadError(),
                  "expected [6] from the sizes in config.json, "
                  "found [6, 1]"));
}

TEST_F(WeightsTest, RefusesAnotherType) {
  TensorSet set = AllTensors();
  set.Add(Layer(1, "mlp.down_proj"), {kHidden, kInner}, Dtype::kF64);
  WriteModel(set);
  const std::string error = LoadError();
  EXPECT_TRUE(Has(error, "model.layers.1.mlp.down_proj.weight"));
  EXPECT_TRUE(Has(error, "expected F32, F16 or BF16, found F64"));
}

TEST_F(WeightsTest, ReadsShards) {
  WriteShards(AllTensors());
  const ModelWeights loaded = Load();
  ExpectAllTensors(loaded.weights);
  EXPECT_EQ(loaded.files->files().size(), 2u);
  const TensorInfo* norm = loaded.files->Find("model.norm.weight");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(loaded.files->PathOf(*norm).filename(), "two.safetensors");
}

TEST_F(WeightsTest, NamesAllAbsentShards) {
  WriteShards(AllTensors());
  fs::remove(dir_ / "one.safetensors");
  fs::remove(dir_ / "two.safetensors");
  fs::create_symlink("blobs/gone", dir_ / "two.safetensors");
  const std::string error = LoadError();
  EXPECT_TRUE(Has(error, "model.safetensors.index.json: 2 of 2 files"));
  EXPECT_TRUE(Has(error, "one.safetensors, two.safetensors"));
}

TEST_F(WeightsTest, NamesATruncatedShard) {
  WriteShards(AllTensors());
  fs::resize_file(dir_ / "two.safetensors",
                  fs::file_size(dir_ / "two.safetensors") - 1);
  EXPECT_TRUE(Has(LoadError(), "two.safetensors: incomplete file"));
}

TEST_F(WeightsTest, RefusesAnIndexThatLies) {
  auto weight_map = WriteShards(AllTensors());
  auto wrong = weight_map;
  wrong["model.norm.weight"] = "one.safetensors";
  WriteIndex(wrong);
  EXPECT_TRUE(Has(LoadError(),
                  "expected tensor \"model.norm.weight\" in "
                  "one.safetensors, found it in two.safetensors"));
  wrong = weight_map;
  wrong["nowhere"] = "one.safetensors";
  WriteIndex(wrong);
  EXPECT_TRUE(Has(LoadError(),
                  "\"nowhere\" in one.safetensors, found it in no "
                  "file"));
  // A tensor in both shards: which one would be meant?
  TensorSet set = AllTensors();
  WriteSafetensors(dir_ / "two.safetensors", {},
                   set.Pick([](const std::string& name) {
                     return name.find("layers.1.") != std::string::npos ||
                            name.find("layers") == std::string::npos;
                   }));
  WriteIndex(weight_map);
  const std::string error = LoadError();
  EXPECT_TRUE(Has(error, "model.layers.1."));
  EXPECT_TRUE(Has(error, "one.safetensors too"));
}

TEST_F(WeightsTest, OpensNothingOutsideTheDirectory) {
  auto weight_map = WriteShards(AllTensors());
  for (const char* name :
       {"../one.safetensors", "/etc/passwd", "..", ".", "", "a/b.safetensors",
        "a\\b.safetensors", "one.safetensors/"}) {
    weight_map["model.norm.weight"] = name;
    WriteIndex(weight_map);
    EXPECT_TRUE(Has(LoadError(),
                    "expected the name of a file in the same "
                    "directory"))
        << name;
  }
  weight_map["model.norm.weight"] = std::string("one.safetensors\0x", 17);
  WriteIndex(weight_map);
  EXPECT_TRUE(Has(LoadError(), "in the same directory"));
  weight_map["model.norm.weight"] = 1;
  WriteIndex(weight_map);
  EXPECT_TRUE(Has(LoadError(), "in the same directory, found 1"));
}

TEST_F(WeightsTest, RefusesABrokenIndex) {
  WriteConfig();
  const auto error = [&](const char* text) {
    WriteFile(dir_ / "model.safetensors.index.json", text);
    return LoadError();
  };
  EXPECT_TRUE(Has(error("{"), "not valid JSON"));
  EXPECT_TRUE(Has(error("{}"), "weight_map: expected an object"));
  EXPECT_TRUE(Has(error(R"({"weight_map":{}})"), "weight_map"));
  EXPECT_TRUE(Has(error(R"({"weight_map":[1]})"), "found [1]"));
  EXPECT_TRUE(Has(error(R"({"weight_map":{"a":"x","a":"y"}})"), "duplicate"));
}

TEST_F(WeightsTest, FollowsTheLinksOfTheHubCache) {
  WriteModel(AllTensors());
  // blobs/ beside snapshots/revision/, as the hub's client lays them out.
  const fs::path blobs = dir_ / "cache/blobs";
  const fs::path snapshot = dir_ / "cache/snapshots/abc";
  fs::create_directories(blobs);
  fs::create_directories(snapshot);
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::rename(dir_ / name, blobs / (std::string("hash_") + name));
    fs::create_symlink(fs::path("../../blobs") / (std::string("hash_") + name),
                       snapshot / name);
  }
  ExpectAllTensors(LoadWeights(snapshot).weights);
  fs::remove(blobs / "hash_model.safetensors");
  EXPECT_TRUE(Has(ErrorOf([&] { LoadWeights(snapshot); }),
                  "which does not exist; download"));
}

TEST_F(WeightsTest, TellsWhatIsNoModelDirectory) {
  EXPECT_TRUE(Has(ErrorOf([&] { LoadWeights(dir_ / "typo"); }),
                  "typo: expected a model directory, found nothing"));
  WriteConfig();
  EXPECT_TRUE(Has(ErrorOf([&] { LoadWeights(dir_ / "config.json"); }),
                  "expected a model directory, found a file"));
  EXPECT_TRUE(Has(LoadError(),
                  "expected model.safetensors or "
                  "model.safetensors.index.json, found neither"));
  WriteFile(dir_ / "pytorch_model.bin", "x");
  EXPECT_TRUE(Has(LoadError(), "it has pytorch_model.bin"));
  fs::create_directory(dir_ / "model.safetensors");
  EXPECT_TRUE(Has(LoadError(),
                  "model.safetensors: expected a file, found a "
                  "directory"));
}

}  // namespace
}  // namespace kvlab
