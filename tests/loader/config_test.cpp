#include "common/loader/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/loader/json.h"
#include "tests/loader/temp_dir.h"

namespace kvlab {
namespace {

/// config.json of a small Qwen3 as transformers 4 writes it.
Json SmallConfig() {
  return Json::parse(R"({
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": null,
    "tie_word_embeddings": true,
    "attention_bias": false,
    "max_position_embeddings": 4096,
    "use_sliding_window": false,
    "sliding_window": null,
    "eos_token_id": 299
  })");
}

class ConfigTest : public testing::Test {
 protected:
  ModelConfig ReadText(std::string_view text) {
    WriteFile(dir_ / "config.json", text);
    return ReadModelConfig(dir_.path());
  }
  ModelConfig Read(const Json& json) { return ReadText(json.dump()); }
  /// What reading says with `field` set to the JSON `value`.
  std::string ErrorWith(const std::string& field, const char* value) {
    // Built as text, so that numbers stay as they are written here.
    Json json = SmallConfig();
    json.erase(field);
    std::string text = json.dump();
    text.insert(1, "\"" + field + "\":" + value + ",");
    return ErrorOf([&] { ReadText(text); });
  }
  std::string ErrorWithout(const std::string& field) {
    Json json = SmallConfig();
    json.erase(field);
    return ErrorOf([&] { Read(json); });
  }

  TempDir dir_;
};

TEST_F(ConfigTest, ReadsEveryField) {
  const ModelConfig config = Read(SmallConfig());
  EXPECT_EQ(config.family->model_type, "qwen3");
  EXPECT_TRUE(config.family->qk_norm);
  EXPECT_EQ(config.vocab_size, 300);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.group(), 2);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.rms_norm_eps, 1e-6f);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.max_position_embeddings, 4096);
  EXPECT_EQ(config.trained_context, 4096);
}

TEST_F(ConfigTest, FillsWhatQwen3LeavesOut) {
  Json json = SmallConfig();
  for (const char* field :
       {"head_dim", "tie_word_embeddings", "hidden_act", "attention_bias",
        "use_sliding_window", "rope_scaling", "sliding_window"}) {
    json.erase(field);
  }
  json["kvlab_trained_context"] = 2100;
  const ModelConfig config = Read(json);
  EXPECT_EQ(config.head_dim, 128);  // Qwen3's default, not hidden / heads
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.trained_context, 2100);
}

TEST_F(ConfigTest, ReadsRopeAsTransformers5WritesIt) {
  Json json = SmallConfig();
  json.erase("rope_theta");
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"rope_theta", 10000}, {"rope_type", "default"}};
  json["layer_types"] = {"full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(Read(json).rope_theta, 10000);
  // Both forms may stand in one file, if they agree.
  json["rope_theta"] = 10000.0;
  EXPECT_EQ(Read(json).rope_theta, 10000);
  json["rope_theta"] = 5000;
  const std::string error = ErrorOf([&] { Read(json); });
  EXPECT_TRUE(Has(error, "rope_theta: expected the same as "));
  EXPECT_TRUE(Has(error, "found 5000"));
}

TEST_F(ConfigTest, RefusesScaledRope) {
  for (const char* type : {"yarn", "llama3", "linear"}) {
    const std::string value = StrCat("{\"rope_type\":\"", type, "\"}");
    EXPECT_TRUE(Has(ErrorWith("rope_scaling", value.c_str()), type));
    EXPECT_TRUE(Has(ErrorWith("rope_parameters", value.c_str()), type));
  }
  EXPECT_TRUE(Has(ErrorWith("rope_scaling", R"({"type":"yarn","factor":4})"),
                  "rope_scaling.type"));
  EXPECT_TRUE(Has(ErrorWith("rope_scaling", R"({"factor":4})"), "null"));
  EXPECT_TRUE(Has(ErrorWith("rope_scaling", "4"), "rope_scaling"));
  EXPECT_TRUE(Has(ErrorWith("rope_parameters", "[]"), "rope_parameters"));
  EXPECT_TRUE(Has(ErrorWith("rope_parameters",
                            R"({"rope_theta":1,"partial_rotary_factor":0.5})"),
                  "rope_parameters.partial_rotary_factor"));
  EXPECT_EQ(ErrorWith("rope_scaling", R"({"rope_type":"default"})"), "");
}

TEST_F(ConfigTest, NamesWhatIsMissing) {
  for (const char* field :
       {"model_type", "vocab_size", "hidden_size", "intermediate_size",
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "rms_norm_eps", "rope_theta", "max_position_embeddings"}) {
    const std::string error = ErrorWithout(field);
    EXPECT_TRUE(Has(error, StrCat(field, ": expected"))) << field;
    EXPECT_TRUE(Has(error, "no such field")) << field;
    EXPECT_TRUE(Has(error, (dir_ / "config.json").string())) << field;
  }
}

TEST_F(ConfigTest, RefusesWhatIsNoInteger) {
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim",
        "max_position_embeddings", "kvlab_trained_context"}) {
    for (const char* value :
         {"0", "-8", "1e300", "64.0", "64.5", "\"64\"", "true", "null", "[64]",
          "{}", "9223372036854775808", "18446744073709551616", "4294967360",
          "2147483647", "-9223372036854775808"}) {
      const std::string error = ErrorWith(field, value);
      EXPECT_TRUE(Has(error, StrCat(field, ": expected an integer of ")))
          << value;
    }
  }
  EXPECT_TRUE(Has(ErrorWith("hidden_size", "64.5"), "found 64.5"));
  EXPECT_TRUE(Has(ErrorWith("hidden_size", "1e999"), "number overflow"));
}

TEST_F(ConfigTest, RefusesWhatIsNoPositiveNumber) {
  for (const char* field : {"rms_norm_eps", "rope_theta"}) {
    for (const char* value :
         {"0", "-1", "0.0", "\"1\"", "null", "true", "[]"}) {
      EXPECT_TRUE(Has(ErrorWith(field, value),
                      StrCat(field, ": expected a finite number above 0")))
          << value;
    }
  }
  // As floats these are 0 and infinity.
  EXPECT_TRUE(Has(ErrorWith("rms_norm_eps", "1e-300"), "32-bit float"));
  EXPECT_TRUE(Has(ErrorWith("rms_norm_eps", "1e300"), "32-bit float"));
}

TEST_F(ConfigTest, RefusesWhatRopeCannotCompute) {
  for (const char* theta : {"0.5", "0.999", "1", "1.0", "1e-320"}) {
    EXPECT_TRUE(Has(ErrorWith("rope_theta", theta),
                    "json: rope_theta: expected a number above 1, found "))
        << theta;
    const std::string moved = StrCat("{\"rope_theta\":", theta, "}");
    EXPECT_TRUE(Has(ErrorWith("rope_parameters", moved.c_str()),
                    "rope_parameters.rope_theta: expected a number above 1"))
        << theta;
  }
  EXPECT_EQ(ErrorWith("rope_theta", "1.0001"), "");
  // Angles reach the position in radians; Sin and Cos end at 2^20.
  EXPECT_EQ(ErrorWith("max_position_embeddings", "1048576"), "");
  EXPECT_TRUE(Has(ErrorWith("max_position_embeddings", "1048577"),
                  "expected an integer of 1 to 1048576, found 1048577"));
}

TEST_F(ConfigTest, RefusesSizesThatDoNotFitTogether) {
  EXPECT_TRUE(Has(ErrorWith("num_key_value_heads", "3"),
                  "a divisor of num_attention_heads, 4, found 3"));
  EXPECT_TRUE(Has(ErrorWith("num_key_value_heads", "8"), "found 8"));
  EXPECT_TRUE(Has(ErrorWith("head_dim", "33"), "an even number, found 33"));
  EXPECT_TRUE(Has(ErrorWith("head_dim", "1026"), "2 to 1024, found 1026"));
  EXPECT_TRUE(Has(ErrorWith("kvlab_trained_context", "4097"), "1 to 4096"));
}

TEST_F(ConfigTest, RefusesOtherModels) {
  const std::string error = ErrorWith("model_type", "\"gpt2\"");
  EXPECT_TRUE(Has(error, "model_type: expected \"qwen3\""));
  EXPECT_TRUE(Has(error, "found \"gpt2\""));
  EXPECT_TRUE(Has(ErrorWith("model_type", "3"), "expected a string"));
  EXPECT_TRUE(Has(ErrorWith("hidden_act", "\"gelu\""), "found \"gelu\""));
  EXPECT_TRUE(Has(ErrorWith("attention_bias", "true"), "attention_bias"));
  EXPECT_TRUE(Has(ErrorWith("attention_bias", "1"), "true or false"));
  EXPECT_TRUE(Has(ErrorWith("use_sliding_window", "true"), "sliding"));
  EXPECT_TRUE(
      Has(ErrorWith("tie_word_embeddings", "\"yes\""), "found \"yes\""));
  EXPECT_TRUE(Has(ErrorWith("layer_types", R"(["sliding_attention"])"),
                  "found \"sliding_attention\""));
  EXPECT_TRUE(
      Has(ErrorWith("quantization_config", R"({"bits":4})"), "unquantised"));
}

TEST_F(ConfigTest, RefusesWhatIsNoJsonObject) {
  const auto error = [&](std::string_view text) {
    return ErrorOf([&] { ReadText(text); });
  };
  EXPECT_TRUE(Has(error(""), "not valid JSON"));
  EXPECT_TRUE(
      Has(error("[1, 2]"), "expected a JSON object {...}, found [1,2]"));
  EXPECT_TRUE(Has(error("{\"a\": 1"), "not valid JSON"));
  EXPECT_TRUE(Has(error("{\"a\": \"\xFF\"}"), "not valid JSON"));
  EXPECT_TRUE(Has(error("{} x"), "not valid JSON"));
  EXPECT_TRUE(Has(error(std::string("{}\0", 3)), "is NUL"));
  EXPECT_TRUE(Has(error("\xEF\xBB\xBF{}"), "byte order mark"));
  EXPECT_TRUE(Has(error(R"({"a":{"b":1},"c":[{"b":1},{"b":1,"b":2}]})"),
                  "duplicate key \"b\""));
  // A parser that recurses needs stack for each level.
  const std::string deep(2'000'000, '[');
  EXPECT_TRUE(Has(error(deep), "deeper than 64 levels"));
  std::string objects;
  for (int i = 0; i < 500'000; ++i) objects += "{\"a\":";
  EXPECT_TRUE(Has(error(objects), "deeper than 64 levels"));
}

TEST_F(ConfigTest, ReadsEveryKindOfValue) {
  const std::string text =
      R"([null,true,-7,7,18446744073709551615,0.5,"s",[],[1,[2],3],{},)"
      R"({"a":[{"a":1},4],"b":{"a":"x"}}])";
  const Json json = ParseJson(text, "test");
  EXPECT_EQ(json.dump(), text);
  EXPECT_TRUE(json[2].is_number_integer());
  EXPECT_TRUE(json[4].is_number_unsigned());
  EXPECT_TRUE(json[5].is_number_float());
  EXPECT_EQ(ParseJson(" 7 ", "test"), Json(7));
}

TEST_F(ConfigTest, ManyObjectsEnd) {
  // A parser that searches the parent at the end of every object takes minutes.
  constexpr int kObjects = 500'000;
  std::string list = "[{}", object = "{\"\":{}";
  for (int i = 1; i < kObjects; ++i) {
    list += ",{}";
    object += StrCat(",\"", i, "\":{}");
  }
  EXPECT_EQ(ParseJson(list + "]", "test").size(), kObjects);
  EXPECT_EQ(ParseJson(object + "}", "test").size(), kObjects);
}

TEST_F(ConfigTest, TellsWhatStandsInPlaceOfTheFile) {
  const auto error = [&] {
    return ErrorOf([&] { ReadModelConfig(dir_.path()); });
  };
  EXPECT_TRUE(Has(error(), "config.json: no such file"));
  std::filesystem::create_directory(dir_ / "config.json");
  EXPECT_TRUE(Has(error(), "found a directory"));
}

TEST_F(ConfigTest, BoundsTheFile) {
  WriteFile(dir_ / "big", std::string(1001, ' '));
  EXPECT_TRUE(Has(ErrorOf([&] { ReadSmallFile(dir_ / "big", 1000); }),
                  "1001 bytes, expected at most 1000"));
  EXPECT_EQ(ReadSmallFile(dir_ / "big", 1001).size(), 1001u);
}

TEST_F(ConfigTest, ReadsEosIds) {
  const auto ids = [&](const char* generation, const char* config) {
    std::filesystem::remove(dir_ / "generation_config.json");
    if (generation != nullptr) {
      WriteFile(dir_ / "generation_config.json", generation);
    }
    WriteFile(dir_ / "config.json", config);
    return ReadEosIds(dir_.path(), 300);
  };
  using Ids = std::vector<int>;
  const char* c7 = R"({"eos_token_id": 7})";
  EXPECT_EQ(ids(R"({"eos_token_id": 9})", c7), Ids({9}));
  EXPECT_EQ(ids(R"({"eos_token_id": [9, 299, 0]})", c7), Ids({9, 299, 0}));
  EXPECT_EQ(ids(R"({"eos_token_id": null})", c7), Ids({7}));
  EXPECT_EQ(ids("{}", c7), Ids({7}));
  EXPECT_EQ(ids(nullptr, c7), Ids({7}));
  EXPECT_EQ(ids(nullptr, "{}"), Ids());

  for (const char* bad : {"300", "-1", "7.0", "\"7\"", "true", "[7, 300]",
                          "[[7]]", "1e300", "18446744073709551615", "{}"}) {
    const std::string text = StrCat("{\"eos_token_id\": ", bad, "}");
    const std::string error = ErrorOf([&] { ids(text.c_str(), c7); });
    EXPECT_TRUE(Has(error, "generation_config.json: eos_token_id: expected an"))
        << bad;
    EXPECT_TRUE(Has(error, "0 to 299")) << bad;
  }
}

}  // namespace
}  // namespace kvlab
