/// The engine against Hugging Face transformers: tests/oracle/README.md.
#include <gtest/gtest.h>

#include "common/engine/generate.h"
#include "common/loader/model.h"
#include "day09_kv_q8/three_pass.h"
#include "tests/require.h"
#include "tests/support/compare.h"
#include "tests/support/tensors.h"

namespace kvlab {
namespace {

/// max|a - b| / max|b| that float32 in another order of summation may reach;
/// measured differences of the library from itself: tests/oracle/README.md.
constexpr double kTinyTolerance = 2e-5;

/// A fixture's model, run over its tokens.
struct OracleRun {
  ModelWeights model;
  SafetensorsFile expected;
  std::vector<int> tokens;
  std::vector<float> logits;  // of all positions
  std::vector<float> k_last, v_last, attention_last;
  ImportanceRecord importance;

  OracleRun(const std::filesystem::path& directory,
            const std::filesystem::path& expected_file)
      : model(LoadWeights(directory)),
        expected(SafetensorsFile::Open(expected_file)),
        importance(0, 0, 0) {
    for (const std::int64_t id : Values<std::int64_t>(expected, "input_ids")) {
      tokens.push_back(static_cast<int>(id));
    }
    const ModelConfig& c = model.config;
    const auto n = static_cast<int>(tokens.size());
    ThreadPool pool(2);
    const Primitives& primitives = PrimitivesFor(BestIsa());
    Transformer transformer(c, model.weights, primitives, pool);
    KvCache cache(transformer.CacheShape(KvFormat::kF32, n + 1), primitives);
    ThreePass stage(primitives);
    importance = ImportanceRecord(c.layers, c.heads, n);
    // All but the last token in prefill; the last by a decode step, whose
    // attention an observer sees.
    struct Recorder : Observer {
      std::vector<float> attention;
      void OnAttention(int, int, std::span<const float> out) override {
        attention.insert(attention.end(), out.begin(), out.end());
      }
    } recorder;
    transformer.Prefill(tokens, cache, stage,
                        {.importance = &importance, .all_logits = &logits});
    KvCache again(cache.shape(), primitives);
    transformer.Prefill(std::span(tokens).first(n - 1), again, stage, {});
    const auto decoded = transformer.Decode(tokens.back(), again, stage,
                                            {.observer = &recorder});
    EXPECT_TRUE(SameBits(decoded, std::span(logits).last(
                                      static_cast<std::size_t>(c.vocab_size))))
        << "decode of the last position differs from its prefill";
    attention_last = recorder.attention;
    for (int layer = 0; layer < c.layers; ++layer) {
      for (int head = 0; head < c.kv_heads; ++head) {
        const KvHeadView view = cache.View(layer, head);
        const auto row = std::int64_t{n - 1} * view.stride;
        k_last.insert(k_last.end(), view.keys + row,
                      view.keys + row + c.head_dim);
        v_last.insert(v_last.end(), view.values + row,
                      view.values + row + c.head_dim);
      }
    }
  }

  std::vector<float> Expected(const std::string& name) const {
    return Values<float>(expected, name);
  }

  /// Our logits at the fixture's positions.
  std::vector<float> LogitsAtPositions() const {
    std::vector<float> rows;
    const auto vocab = static_cast<std::size_t>(model.config.vocab_size);
    for (const std::int64_t p : Values<std::int64_t>(expected, "positions")) {
      const auto row = std::span(logits).subspan(p * vocab, vocab);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }
};

/// The lab model over the length of the needle lab. The library's own RoPE
/// frequencies differ from the correctly rounded ones in the last bit, which
/// 2,000 positions multiply: measured 1.7e-5 against float64 on such a model.
TEST(LabModelOracle, AgreesWithTransformersOver2061Tokens) {
  KVLAB_NEEDS_A_REAL_CPU("the small fixtures run here");
  const auto directory =
      std::filesystem::path(KVLAB_SOURCE_DIR) / "common/lab_model";
  const OracleRun run(directory,
                      FixturePath("lab_model") / "expected.safetensors");
  ASSERT_EQ(run.tokens.size(), 2061u);
  EXPECT_TRUE(WithinRelativeMax<float>(run.LogitsAtPositions(),
                                       run.Expected("logits"), 1e-4));
  EXPECT_TRUE(WithinRelativeMax<float>(run.attention_last,
                                       run.Expected("attention_last"), 1e-4));
  const auto mass = Values<double>(run.expected, "importance");
  const auto ours = run.importance.Total(2061);
  for (std::size_t s = 0; s < mass.size(); ++s) {
    EXPECT_NEAR(ours[s], mass[s], 1e-4 * 2061) << "token " << s;
  }

  // The same greedy answer, end token included.
  const auto answer = Values<std::int64_t>(run.expected, "answer_ids");
  const Model model = LoadModel(directory);
  ThreadPool pool(1);
  const Primitives& primitives = PrimitivesFor(BestIsa());
  const int capacity = 2061 + static_cast<int>(answer.size());
  Transformer transformer(model.config, model.weights, primitives, pool);
  KvCache cache(transformer.CacheShape(KvFormat::kF32, capacity), primitives);
  ThreePass stage(primitives);
  const Generation g =
      Generate(transformer, cache, stage, run.tokens,
               {.max_tokens = static_cast<int>(answer.size())});
  EXPECT_EQ(std::vector<std::int64_t>(g.tokens.begin(), g.tokens.end()),
            answer);
  EXPECT_EQ(model.tokenizer.Decode(g.tokens, true),
            "Zara's favorite food is ramen.");
}

class OracleTest : public testing::TestWithParam<const char*> {};

TEST_P(OracleTest, AgreesWithTransformers) {
  const auto directory = FixturePath(GetParam());
  const OracleRun run(directory, directory / "expected.safetensors");
  const auto within = [&](std::span<const float> a, const std::string& name) {
    const auto b = run.Expected(name);
    EXPECT_TRUE(WithinRelativeMax<float>(a, b, kTinyTolerance)) << name;
  };
  // From the inside out: the first that fails is nearest to the mistake.
  within(run.k_last, "k_last");
  within(run.v_last, "v_last");
  within(run.attention_last, "attention_last");
  within(run.LogitsAtPositions(), "logits");

  const auto mass = Values<double>(run.expected, "attention_mass");
  const auto n = run.tokens.size();
  const ModelConfig& c = run.model.config;
  ASSERT_EQ(mass.size(), n * c.layers * c.heads);
  for (int layer = 0; layer < c.layers; ++layer) {
    for (int head = 0; head < c.heads; ++head) {
      const auto ours = run.importance.Head(layer, head);
      double sum = 0;
      for (std::size_t s = 0; s < n; ++s) {
        const double theirs =
            mass[(static_cast<std::size_t>(layer) * c.heads + head) * n + s];
        EXPECT_NEAR(ours[s], theirs, kTinyTolerance * static_cast<double>(n))
            << "layer " << layer << ", head " << head << ", token " << s;
        sum += ours[s];
      }
      // The masses add up to the number of queries.
      EXPECT_NEAR(sum, static_cast<double>(n), 1e-6 * static_cast<double>(n));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fixtures, OracleTest,
    testing::Values("mha_d32_tied_f32", "gqa2_d64_untied_f32",
                    "gqa4_d128_tied_bf16", "gqa2_d128_untied_f16",
                    "gqa4_d32_sharded_bf16", "mha_d80_eps_f16",
                    "claims_tied_bf16"),
    [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvlab
