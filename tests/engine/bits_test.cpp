/// Same bits everywhere: threads, chunks, instruction sets, watched or not.
#include <gtest/gtest.h>

#include <bit>
#include <memory>

#include "common/base/error.h"
#include "common/engine/generate.h"
#include "common/loader/model.h"
#include "day09_kv_q8/online_softmax.h"
#include "day09_kv_q8/q8_single_pass.h"
#include "day09_kv_q8/three_pass.h"
#include "tests/support/compare.h"
#include "tests/support/tensors.h"

namespace kvlab {
namespace {

/// Everything that a prompt leaves behind.
struct Footprint {
  std::vector<float> logits;  // of all positions, then of three decode steps
  std::vector<float> cache;   // all keys and values, layer by layer
  std::vector<double> importance;
};

struct Settings {
  Isa isa = BestIsa();
  int threads = 1;
  int chunk = 512;
  const Primitives* primitives = nullptr;  // instead of the isa's
  // The stage: three_pass unless one of these is set.
  bool online = false;
  bool q8 = false;
  int tile = kTileTokens;
};

/// `n` tokens of a fixture's model; ids run through its vocabulary.
Footprint RunModel(const std::string& fixture, int n,
                   const Settings& settings) {
  const ModelWeights model = LoadWeights(FixturePath(fixture));
  const ModelConfig& c = model.config;
  ThreadPool pool(settings.threads);
  const Primitives& primitives = settings.primitives != nullptr
                                     ? *settings.primitives
                                     : PrimitivesFor(settings.isa);
  std::vector<int> tokens;
  std::uint32_t state = 1;
  for (int i = 0; i < n; ++i) {
    state = state * 1664525 + 1013904223;
    tokens.push_back(
        static_cast<int>((state >> 8) % static_cast<unsigned>(c.vocab_size)));
  }
  Transformer transformer(c, model.weights, primitives, pool);
  const KvFormat format = settings.q8 ? KvFormat::kQ8 : KvFormat::kF32;
  KvCache cache(transformer.CacheShape(format, n + 3), primitives);
  std::unique_ptr<AttentionStage> stage;
  if (settings.q8) {
    stage = std::make_unique<Q8SinglePass>(primitives, settings.tile);
  } else if (settings.online) {
    stage = std::make_unique<OnlineSoftmaxStage>(primitives, settings.tile);
  } else {
    stage = std::make_unique<ThreePass>(primitives);
  }
  ImportanceRecord importance(c.layers, c.heads, n);
  Footprint f;
  transformer.Prefill(tokens, cache, *stage,
                      {.chunk = settings.chunk,
                       .importance = &importance,
                       .all_logits = &f.logits});
  for (int step = 0; step < 3; ++step) {
    const auto logits = transformer.Decode(tokens[step], cache, *stage, {});
    f.logits.insert(f.logits.end(), logits.begin(), logits.end());
  }
  for (int layer = 0; layer < c.layers; ++layer) {
    for (int head = 0; head < c.kv_heads; ++head) {
      const KvHeadView view = cache.View(layer, head);
      const auto size = std::int64_t{view.tokens} * view.stride;
      const auto add = [&](const auto* from, std::int64_t count) {
        f.cache.insert(f.cache.end(), from, from + count);
      };
      if (settings.q8) {
        add(view.key_codes, size);
        add(view.value_codes, size);
        add(view.key_scales, view.tokens);
        add(view.value_scales, view.tokens);
      } else {
        add(view.keys, size);
        add(view.values, size);
      }
    }
  }
  f.importance = importance.Total(n);
  return f;
}

void ExpectSame(const Footprint& a, const Footprint& b,
                const std::string& what) {
  EXPECT_TRUE(SameBits(a.cache, b.cache)) << what << ": cache";
  EXPECT_TRUE(SameBits(a.logits, b.logits)) << what << ": logits";
  EXPECT_EQ(a.importance, b.importance) << what << ": importance";
}

constexpr const char* kFixture = "gqa4_d32_sharded_bf16";

/// As long as it should be, or what an emulator does in seconds.
constexpr int Tokens(int should, int emulated) {
  return KVLAB_EMULATED ? emulated : should;
}

TEST(SameBits, AnyThreadCount) {
  // Long enough for every loop to be split.
  constexpr int kTokens = Tokens(2100, 200);
  for (const bool q8 : {false, true}) {
    const Footprint one = RunModel(kFixture, kTokens, {.q8 = q8});
    for (const int threads : {2, 3, 7, 16}) {
      ExpectSame(one,
                 RunModel(kFixture, kTokens, {.threads = threads, .q8 = q8}),
                 StrCat(threads, " threads"));
    }
  }
}

TEST(SameBits, AnyPrefillChunk) {
  constexpr int kTokens = Tokens(600, 150);
  for (const bool q8 : {false, true}) {
    const Footprint whole =
        RunModel(kFixture, kTokens, {.chunk = kTokens, .q8 = q8});
    for (const int chunk : {1, 7, 32, 512}) {
      ExpectSame(whole, RunModel(kFixture, kTokens, {.chunk = chunk, .q8 = q8}),
                 StrCat("chunks of ", chunk));
    }
  }
}

TEST(SameBits, AnyIsa) {
  constexpr int kTokens = Tokens(150, 70);
  for (const char* fixture : {"mha_d32_tied_f32", "gqa2_d128_untied_f16",
                              "mha_d80_eps_f16", "gqa4_d128_tied_bf16"}) {
    for (Settings settings :
         {Settings{}, Settings{.online = true},
          Settings{.online = true, .tile = 1}, Settings{.q8 = true},
          Settings{.q8 = true, .tile = 1}}) {
      settings.isa = Isa::kScalar;
      const Footprint scalar = RunModel(fixture, kTokens, settings);
      for (const Isa isa : BuiltIsas()) {
        if (!CpuHas(isa)) continue;  // primitives_test lists it as skipped
        settings.isa = isa;
        ExpectSame(
            scalar, RunModel(fixture, kTokens, settings),
            StrCat(fixture, " on ", IsaName(isa), ", online ", settings.online,
                   ", q8 ", settings.q8, ", tile ", settings.tile));
      }
    }
  }
}

/// A wrong primitive changes what comes out, whichever it is: the engine and
/// the stage really use the table they are given.
TEST(SameBits, EveryPrimitiveOfTheTableIsUsed) {
  static const Primitives& right = PrimitivesFor(BestIsa());
  std::vector<std::pair<std::string, Primitives>> wrong(10, {"", right});
  wrong[0].first = "dot_keys";
  wrong[0].second.dot_keys = [](const TileScores* heads, int count,
                                const KvRows& keys, float scale) {
    right.dot_keys(heads, count, keys, scale * 1.01f);
  };
  wrong[1].first = "accumulate_values";
  wrong[1].second.accumulate_values = [](const TileSum* heads, int count,
                                         const KvRows& values) {
    KvRows fewer = values;
    --fewer.tokens;
    right.accumulate_values(heads, count, fewer);
  };
  wrong[2].first = "exp_and_sum";
  wrong[2].second.exp_and_sum = [](float* x, int n, float max) {
    return right.exp_and_sum(x, n, max) * 1.01f;
  };
  wrong[3].first = "dot";
  wrong[3].second.dot = [](const float* a, const float* b, std::int64_t n) {
    return right.dot(a, b, n) * 1.01f;
  };
  wrong[4].first = "matmul";
  wrong[4].second.matmul = [](const TokenRows& x, const WeightMatrix& w,
                              std::int64_t first, std::int64_t last, float* out,
                              std::int64_t out_stride) {
    right.matmul(x, w, first, last, out, out_stride);
    for (int t = 0; t < x.tokens; ++t) out[t * out_stride + first] *= 1.01f;
  };
  wrong[5].first = "silu_mul";
  wrong[5].second.silu_mul = [](const float* gate, const float* up,
                                std::int64_t n, float* out) {
    right.silu_mul(gate, up, n, out);
    out[0] = -out[0];
  };
  wrong[6].first = "q8: quantise";
  wrong[6].second.quantise = [](const float* x, int n, std::int8_t* codes) {
    return right.quantise(x, n, codes) * 1.01f;
  };
  wrong[7].first = "q8: dot_keys_q8";
  wrong[7].second.dot_keys_q8 = [](const TileScoresQ8* heads, int count,
                                   const KvRowsQ8& keys, float scale) {
    right.dot_keys_q8(heads, count, keys, scale * 1.01f);
  };
  wrong[8].first = "q8: accumulate_values_q8";
  wrong[8].second.accumulate_values_q8 = [](const TileSum* heads, int count,
                                            const KvRowsQ8& values) {
    KvRowsQ8 fewer = values;
    --fewer.tokens;
    right.accumulate_values_q8(heads, count, fewer);
  };
  wrong[9].first = "q8: scale";  // of the running softmax
  wrong[9].second.scale = [](float* x, int n, float factor) {
    right.scale(x, n, factor * 1.01f);
  };
  for (const auto& [name, table] : wrong) {
    const bool q8 = name.starts_with("q8");
    // Token by token, so that the running softmax rescales.
    const Footprint f =
        RunModel(kFixture, 40, {.primitives = &table, .q8 = q8, .tile = 1});
    const Footprint exact = RunModel(kFixture, 40, {.q8 = q8, .tile = 1});
    EXPECT_FALSE(SameBits(exact.logits, f.logits)) << name;
  }
  // The maximum divides out of the softmax, so a wrong one shows elsewhere.
  static int calls;
  calls = 0;
  Primitives counting = right;
  counting.max = [](const float* x, int n) {
    ++calls;
    return right.max(x, n);
  };
  RunModel(kFixture, 40, {.primitives = &counting});
  EXPECT_GT(calls, 0);
}

}  // namespace
}  // namespace kvlab
