/// Same bits everywhere: threads, chunks, instruction sets, watched or not.
#include <gtest/gtest.h>

#include <bit>

#include "common/base/error.h"
#include "common/engine/generate.h"
#include "common/loader/model.h"
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
  KvCache cache(transformer.CacheShape(KvFormat::kF32, n + 3), primitives);
  ThreePass stage(primitives);
  ImportanceRecord importance(c.layers, c.heads, n);
  Footprint f;
  transformer.Prefill(tokens, cache, stage,
                      {.chunk = settings.chunk,
                       .importance = &importance,
                       .all_logits = &f.logits});
  for (int step = 0; step < 3; ++step) {
    const auto logits = transformer.Decode(tokens[step], cache, stage, {});
    f.logits.insert(f.logits.end(), logits.begin(), logits.end());
  }
  for (int layer = 0; layer < c.layers; ++layer) {
    for (int head = 0; head < c.kv_heads; ++head) {
      const KvHeadView view = cache.View(layer, head);
      const auto size = std::int64_t{view.tokens} * view.stride;
      f.cache.insert(f.cache.end(), view.keys, view.keys + size);
      f.cache.insert(f.cache.end(), view.values, view.values + size);
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

TEST(SameBits, AnyThreadCount) {
  // Long enough for every loop to be split.
  const Footprint one = RunModel(kFixture, 2100, {});
  for (const int threads : {2, 3, 7, 16}) {
    ExpectSame(one, RunModel(kFixture, 2100, {.threads = threads}),
               StrCat(threads, " threads"));
  }
}

TEST(SameBits, AnyPrefillChunk) {
  const Footprint whole = RunModel(kFixture, 600, {.chunk = 600});
  for (const int chunk : {1, 7, 32, 512}) {
    ExpectSame(whole, RunModel(kFixture, 600, {.chunk = chunk}),
               StrCat("chunks of ", chunk));
  }
}

TEST(SameBits, AnyIsa) {
  for (const char* fixture : {"mha_d32_tied_f32", "gqa2_d128_untied_f16",
                              "mha_d80_eps_f16", "gqa4_d128_tied_bf16"}) {
    const Footprint scalar = RunModel(fixture, 150, {.isa = Isa::kScalar});
    for (const Isa isa : BuiltIsas()) {
      if (!CpuHas(isa)) continue;  // primitives_test lists it as skipped
      ExpectSame(scalar, RunModel(fixture, 150, {.isa = isa}),
                 StrCat(fixture, " on ", IsaName(isa)));
    }
  }
}

/// A wrong primitive changes what comes out, whichever it is: the engine and
/// the stage really use the table they are given.
TEST(SameBits, EveryPrimitiveOfTheTableIsUsed) {
  static const Primitives& right = PrimitivesFor(BestIsa());
  const Footprint expected = RunModel(kFixture, 40, {});
  std::vector<std::pair<std::string, Primitives>> wrong(6, {"", right});
  wrong[0].first = "dot_keys";
  wrong[0].second.dot_keys = [](const float* q, const float* k, int tokens,
                                int stride, float scale, float* scores) {
    right.dot_keys(q, k, tokens, stride, scale * 1.01f, scores);
  };
  wrong[1].first = "accumulate_values";
  wrong[1].second.accumulate_values = [](const float* w, const float* v,
                                         int tokens, int stride, float* acc) {
    right.accumulate_values(w, v, tokens - 1, stride, acc);
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
  for (const auto& [name, table] : wrong) {
    const Footprint f = RunModel(kFixture, 40, {.primitives = &table});
    EXPECT_FALSE(SameBits(expected.logits, f.logits)) << name;
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
