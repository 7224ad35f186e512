#include <gtest/gtest.h>

#include <limits>

#include "common/base/error.h"
#include "common/engine/generate.h"
#include "common/engine/kv_cache.h"
#include "common/engine/layers.h"
#include "common/engine/rope.h"
#include "common/loader/model.h"
#include "day09_kv_q8/three_pass.h"
#include "tests/loader/temp_dir.h"
#include "tests/support/compare.h"
#include "tests/support/tensors.h"

namespace kvlab {
namespace {

constexpr KvCacheShape kShape{
    .layers = 2, .kv_heads = 3, .head_dim = 20, .capacity = 70};

TEST(KvCache, TokenTLivesInTileTOver32RowTMod32) {
  KvCache cache(kShape, PrimitivesFor(BestIsa()));
  EXPECT_EQ(cache.tokens(), 0);
  const auto rows = RandomFloats(70 * 3 * 20, 1);
  for (int layer = 0; layer < 2; ++layer) {
    cache.Append(layer, std::span(rows).first(33 * 60),
                 std::span(rows).first(33 * 60), 33);
    for (int t = 33; t < 70; ++t) {
      cache.Append(layer, std::span(rows).subspan(t * 60, 60),
                   std::span(rows).subspan(t * 60, 60), 1);
    }
  }
  EXPECT_EQ(cache.tokens(), 70);
  EXPECT_EQ(cache.used_bytes(), 70 * 2 * 3 * 2 * 20 * 4);
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 3; ++head) {
      const KvHeadView view = cache.View(layer, head);
      EXPECT_EQ(view.stride, 32);
      EXPECT_EQ(view.TileTokens(64), 6);
      for (int t = 0; t < 70; ++t) {
        const float* k = view.Key(t);
        const float* v = view.Value(t);
        for (int i = 0; i < 32; ++i) {
          const float expected = i < 20 ? rows[t * 60 + head * 20 + i] : 0.0f;
          ASSERT_EQ(k[i], expected);
          ASSERT_EQ(v[i], expected);
        }
      }
    }
  }
  cache.Clear();
  EXPECT_EQ(cache.tokens(), 0);
}

TEST(KvCache, RefusesWhatIsNotFiniteAndKeepsNothingOfIt) {
  KvCache cache(kShape, PrimitivesFor(BestIsa()));
  auto k = RandomFloats(2 * 60, 1);
  const auto v = RandomFloats(2 * 60, 2);
  k[60 + 45] = std::numeric_limits<float>::infinity();
  const std::string error = ErrorOf([&] { cache.Append(0, k, v, 2); });
  EXPECT_TRUE(Has(error,
                  "a key is not finite (inf) in layer 0, KV head "
                  "2, position 1"))
      << error;
  EXPECT_EQ(cache.View(0, 0).tokens, 0);
  const std::string value_error = ErrorOf([&] { cache.Append(1, v, k, 2); });
  EXPECT_TRUE(Has(value_error, "a value is not finite"));
}

TEST(KvCache, RefusesWhatDoesNotFitBeforeAllocating) {
  KvCacheShape shape{
      .layers = 64, .kv_heads = 64, .head_dim = 256, .capacity = 100'000'000};
  const std::string error =
      ErrorOf([&] { KvCache cache(shape, PrimitivesFor(BestIsa())); });
  EXPECT_TRUE(Has(error, "100000000 tokens need"));
  EXPECT_TRUE(Has(error, "TiB, but only"));
  EXPECT_TRUE(Has(error, "ask for a shorter context"));
}

TEST(RopeTable, TurnsPairsByTheirAngle) {
  RopeTable rope(10000, 8);
  for (const int position : {0, 1, 99}) {
    rope.Prepare(position / 2, position + 1);
    const auto x = RandomFloats(8, 3);
    auto y = x;
    rope.Apply(y.data(), position);
    for (int i = 0; i < 4; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * i / 8);
      EXPECT_NEAR(y[i], x[i] * std::cos(angle) - x[i + 4] * std::sin(angle),
                  1e-5);
      EXPECT_NEAR(y[i + 4], x[i + 4] * std::cos(angle) + x[i] * std::sin(angle),
                  1e-5);
    }
  }
  auto x = RandomFloats(8, 3);
  const auto before = x;
  rope.Prepare(0, 1);
  rope.Apply(x.data(), 0);
  EXPECT_TRUE(SameBits(x, before));
}

TEST(RmsNorm, HasUnitMeanSquare) {
  const auto x = RandomFloats(100, 4, 7.0f);
  const std::vector<float> gain(100, 2.0f);
  std::vector<float> y(100);
  RmsNorm(PrimitivesFor(BestIsa()), x, gain, 1e-6f, y.data());
  double squares = 0;
  for (const float v : y) squares += double{v} * v;
  EXPECT_NEAR(squares / 100, 4, 1e-5);
}

TEST(RmsNorm, RefusesARowThatOverflows) {
  const std::vector<float> x(16, 2e30f), gain(16, 1.0f);
  std::vector<float> y(16);
  const std::string error = ErrorOf(
      [&] { RmsNorm(PrimitivesFor(BestIsa()), x, gain, 1e-6f, y.data()); });
  EXPECT_TRUE(Has(error, "the mean square of a row is inf")) << error;
}

TEST(Argmax, SmallestIndexAmongEquals) {
  EXPECT_EQ(Argmax(std::vector<float>{1, 5, 2, 5}), 1);
  EXPECT_EQ(Argmax(std::vector<float>{-0.0f, 0.0f}), 0);
}

/// A tiny model to generate with.
class GenerateTest : public testing::Test {
 protected:
  ModelWeights model_ = LoadWeights(FixturePath("gqa2_d64_untied_f32"));
  ThreadPool pool_{2};
  const Primitives& primitives_ = PrimitivesFor(BestIsa());
  Transformer transformer_{model_.config, model_.weights, primitives_, pool_};
  KvCache cache_{transformer_.CacheShape(KvFormat::kF32, 100),
                 PrimitivesFor(BestIsa())};
  ThreePass stage_{primitives_};
  std::vector<int> prompt_ = {1, 2, 3, 4, 5, 6, 7};

  Generation Continue(const GenerateOptions& options) {
    return Generate(transformer_, cache_, stage_, prompt_, options);
  }
};

TEST_F(GenerateTest, EqualsPrefillOfTheWholeText) {
  const Generation g = Continue({.max_tokens = 12});
  ASSERT_EQ(g.tokens.size(), 12u);
  EXPECT_FALSE(g.stopped);
  EXPECT_EQ(g.total_ms.size(), 11u);
  // Each token is the argmax of a fresh prefill of all before it.
  std::vector<int> text = prompt_;
  for (const int token : g.tokens) {
    KvCache fresh(cache_.shape(), primitives_);
    EXPECT_EQ(Argmax(transformer_.Prefill(text, fresh, stage_, {})), token);
    text.push_back(token);
  }
}

TEST_F(GenerateTest, StopsOnAnyStopToken) {
  const Generation all = Continue({.max_tokens = 12});
  const std::vector<int> stop = {-5, all.tokens[4]};
  const Generation g = Continue({.max_tokens = 12, .stop_ids = stop});
  EXPECT_TRUE(g.stopped);
  const auto first = std::ranges::find(all.tokens, stop[1]);
  EXPECT_EQ(g.tokens, std::vector<int>(all.tokens.begin(), first));
}

TEST_F(GenerateTest, ASecondPromptStartsFromNothing) {
  const Generation first =
      Continue({.max_tokens = 8, .record_importance = true});
  prompt_ = {9, 8, 7};
  Continue({.max_tokens = 8, .record_importance = true});
  prompt_ = {1, 2, 3, 4, 5, 6, 7};
  const Generation again =
      Continue({.max_tokens = 8, .record_importance = true});
  EXPECT_EQ(first.tokens, again.tokens);
}

TEST_F(GenerateTest, ProgressRisesToOneAndMayStop) {
  double last = 0;
  int calls = 0;
  Continue({.max_tokens = 1, .prefill_chunk = 2, .progress = [&](double done) {
              EXPECT_GT(done, last);
              last = done;
              ++calls;
            }});
  EXPECT_EQ(last, 1);
  EXPECT_EQ(calls, 4 * model_.config.layers);
  EXPECT_THROW(Continue({.progress = [](double) { Fail("stop"); }}), Error);
}

TEST_F(GenerateTest, RefusesTokensOutsideTheVocabulary) {
  for (const int bad : {-1, model_.config.vocab_size}) {
    prompt_ = {1, bad};
    const std::string error = ErrorOf([&] { Continue({}); });
    EXPECT_TRUE(Has(error, StrCat("token id ", bad)));
  }
}

}  // namespace
}  // namespace kvlab
