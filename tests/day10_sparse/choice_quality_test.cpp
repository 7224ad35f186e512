/// What a choice of blocks keeps, and what it costs.
#include "day10_sparse/choice_quality.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "common/base/error.h"
#include "common/engine/kv_cache.h"
#include "day09_kv_q8/three_pass.h"
#include "day10_sparse/block_masses.h"
#include "day10_sparse/sparse_topk.h"
#include "tests/support/compare.h"
#include "tests/support/kv.h"
#include "tests/support/tensors.h"

namespace kvlab {
namespace {

/// Remembers which blocks were chosen, [heads][blocks].
class Chosen final : public Observer {
 public:
  void OnSelection(const HeadId& /*id*/, int /*block_tokens*/,
                   std::span<const BlockEvent> blocks) override {
    auto& row = taken.emplace_back();
    for (const BlockEvent& e : blocks) row.push_back(e.taken);
  }
  std::vector<std::vector<bool>> taken;
};

/// out - out_sparse = dropped * (mean of the dropped values - out_sparse), all
/// on the right in double from the f32 inputs. Three terms of at most 3 in
/// size, each computed by the stages within 1e-6 relative: 1e-5 holds all.
TEST(ChoiceQuality, WhatIsDroppedIsTheErrorOfTheOutput) {
  const int n = 700, d = 64, group = 2;
  for (const std::uint32_t seed : {40u, 41u, 42u}) {
    TestHead head(n, d, group, seed, 1.5f);
    const AttendInput input = head.Input();
    std::vector<float> exact(std::size_t(group) * d), sparse(exact);
    ThreePass(PrimitivesFor(BestIsa())).Attend(input, exact, nullptr);
    for (const int k : {1, 2, 5, 12, 21}) {
      Chosen chosen;
      SparseTopK(PrimitivesFor(BestIsa()), {.k = k})
          .Attend(input, sparse, &chosen);
      for (int g = 0; g < group; ++g) {
        std::vector<double> p(n);
        double total = 0;
        for (int t = 0; t < n; ++t) {
          double dot = 0;
          for (int i = 0; i < d; ++i) {
            dot += double{head.Query(g)[i]} * head.Key(t)[i];
          }
          total += p[t] = std::exp(dot / std::sqrt(double(d)));
        }
        double dropped = 0;
        std::vector<double> sum(d);
        for (int t = 0; t < n; ++t) {
          if (chosen.taken[g][t / 32]) continue;
          dropped += p[t] / total;
          for (int i = 0; i < d; ++i) sum[i] += p[t] / total * head.Value(t)[i];
        }
        ASSERT_GT(dropped, 1e-3);
        for (int i = 0; i < d; ++i) {
          const double lost = double{exact[g * d + i]} - sparse[g * d + i];
          EXPECT_NEAR(lost, dropped * (sum[i] / dropped - sparse[g * d + i]),
                      1e-5)
              << "seed " << seed << ", k " << k << ", head " << g << ", " << i;
        }
      }
    }
  }
}

TEST(ChoiceQuality, MassesAreTheSoftmaxByBlocks) {
  const int n = 333, d = 64;
  TestHead head(n, d, 1, 43);
  for (const bool q8 : {false, true}) {
    const AttendInput input = q8 ? head.Q8Input() : head.Input();
    const Primitives& primitives = PrimitivesFor(BestIsa());
    TileReader reader(primitives, input.kv);
    reader.Add(input.Query(0));
    for (const int block : {16, 32, 64}) {
      const auto masses = BlockMasses(reader, primitives, 0, n, block);
      ASSERT_EQ(masses.size(), std::size_t(BlockCount(n, block)));
      EXPECT_NEAR(std::accumulate(masses.begin(), masses.end(), 0.0), 1, 1e-12);
      if (q8 || block != 32) continue;
      std::vector<double> expected(masses.size());
      double total = 0;
      for (int t = 0; t < n; ++t) {
        double dot = 0;
        for (int i = 0; i < d; ++i) {
          dot += double{head.Query(0)[i]} * head.Key(t)[i];
        }
        const double weight = std::exp(dot / std::sqrt(double(d)));
        expected[t / 32] += weight;
        total += weight;
      }
      for (std::size_t b = 0; b < masses.size(); ++b) {
        EXPECT_NEAR(masses[b], expected[b] / total, 1e-6) << b;
      }
    }
  }
}

TEST(ChoiceQuality, RecallAndRegretOfEachHead) {
  const int n = 640;
  TestHead head(n, 64, 2, 44);
  const AttendInput input = head.Input();
  std::vector<float> plain(128), watched(128);
  for (const int k : {1, 3, 20}) {
    std::vector<ChoiceQuality> record(2 * 6);  // layer 1, heads 2 and 3 of 6
    SparseTopK stage(PrimitivesFor(BestIsa()), {.k = k},
                     std::make_unique<QualityWatch>(
                         std::make_unique<TopKSelector>(), record, 6));
    Chosen chosen;
    stage.Attend(input, watched, &chosen);
    SparseTopK(PrimitivesFor(BestIsa()), {.k = k})
        .Attend(input, plain, nullptr);
    EXPECT_TRUE(SameBits(watched, plain)) << "to watch changes nothing";
    TileReader reader(PrimitivesFor(BestIsa()), input.kv);
    reader.Add(input.Query(0));
    reader.Add(input.Query(1));
    for (int g = 0; g < 2; ++g) {
      const auto masses =
          BlockMasses(reader, PrimitivesFor(BestIsa()), g, n, 32);
      double recall = 0;
      for (std::size_t b = 0; b < masses.size(); ++b) {
        if (chosen.taken[g][b]) recall += masses[b];
      }
      std::vector<double> sorted = masses;
      std::ranges::sort(sorted, std::greater<>());
      const double best =
          std::accumulate(sorted.begin(), sorted.begin() + k, 0.0);
      const ChoiceQuality& q = record[6 + 2 + g];
      EXPECT_EQ(q.queries(), 1);
      EXPECT_DOUBLE_EQ(q.mean_recall(), recall);
      EXPECT_NEAR(q.mean_regret(), best - recall, 1e-12);
      EXPECT_GE(q.mean_regret(), -1e-12);
      if (k == 20) {
        EXPECT_NEAR(q.mean_recall(), 1, 1e-12);
      }
    }
    EXPECT_EQ(record[0].queries(), 0);
  }
}

/// The packed copy of the probed keys is faster, nothing else.
TEST(PackedProbes, ChangeNoBit) {
  const int n = 1000, d = 80;
  const auto k = RandomFloats(n * 2 * d, 45);
  const auto v = RandomFloats(n * 2 * d, 46);
  std::vector<float> queries(2 * QueryStride(d));
  const auto q = RandomFloats(2 * d, 47);
  for (int g = 0; g < 2; ++g) {
    std::copy_n(&q[g * d], d, &queries[g * QueryStride(d)]);
  }
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kQ8}) {
    for (const int block : {16, 32, 64}) {
      for (const int n_probe : {1, 3, 8, 16, 100}) {
        const SparseOptions options{
            .k = 3, .block_tokens = block, .n_probe = n_probe};
        SparseTopK stage(PrimitivesFor(BestIsa()), options);
        const int step = std::max(1, block / n_probe);
        EXPECT_EQ(stage.packed_step(),
                  step > 1 && block % step == 0 ? step : 0);
        KvCacheShape shape{.format = format,
                           .layers = 1,
                           .kv_heads = 2,
                           .head_dim = d,
                           .capacity = n};
        KvCache plain(shape, PrimitivesFor(BestIsa()));
        shape.packed_step = stage.packed_step();
        KvCache packed(shape, PrimitivesFor(BestIsa()));
        plain.Append(0, k, v, n);
        // In pieces, and some of it twice.
        packed.Append(0, k, v, n);
        packed.Truncate(333);
        for (int t = 333; t < n; ++t) {
          packed.Append(0, std::span(k).subspan(t * 2 * d, 2 * d),
                        std::span(v).subspan(t * 2 * d, 2 * d), 1);
        }
        for (const int tokens : {1, 31, 32, 100, 999, 1000}) {
          for (const int head : {0, 1}) {
            AttendInput input{.position = tokens - 1,
                              .group = 2,
                              .queries = queries,
                              .kv = plain.View(0, head).First(tokens)};
            std::vector<float> a(2 * d), b(2 * d);
            stage.Attend(input, a, nullptr);
            input.kv = packed.View(0, head).First(tokens);
            EXPECT_EQ(input.kv.packed_step, stage.packed_step());
            stage.Attend(input, b, nullptr);
            EXPECT_TRUE(SameBits(a, b))
                << "block " << block << ", n_probe " << n_probe << ", tokens "
                << tokens << ", head " << head;
          }
        }
      }
    }
  }
}

/// They are read from the copy: that is what makes it fast.
TEST(PackedProbes, AreReadFromTheCopy) {
  KvCacheShape shape{.format = KvFormat::kQ8,
                     .layers = 1,
                     .kv_heads = 1,
                     .head_dim = 64,
                     .capacity = 100,
                     .packed_step = 4};
  KvCache cache(shape, PrimitivesFor(BestIsa()));
  const auto rows = RandomFloats(100 * 64, 48);
  cache.Append(0, rows, rows, 100);
  EXPECT_EQ(cache.packed_bytes(), 25 * (64 + 4));
  const KvHeadView view = cache.View(0, 0);
  const KvRowsQ8 some = view.KeysQ8(32, 8, 4);
  EXPECT_EQ(some.codes, view.packed_codes + 8 * 64);
  EXPECT_EQ(some.step, 1);
  EXPECT_EQ(view.KeysQ8(32, 4, 8).step, 2);
  for (const auto& [t, step] : {std::pair{32, 2}, {33, 4}, {32, 1}}) {
    const KvRowsQ8 there = view.KeysQ8(t, 4, step);
    EXPECT_EQ(there.codes, view.KeyCodes(t));
    EXPECT_EQ(there.step, step);
  }
}

/// Importance is summed once a prompt, and anew for the next.
TEST(SparseTopK, ASecondPromptStartsFromItsOwnImportance) {
  TestHead head(200, 64, 1, 49);
  AttendInput input = head.Input();
  SparseTopK stage(PrimitivesFor(BestIsa()), {.k = 1});
  const auto first = [&](const std::vector<double>& importance) {
    input.importance = importance;
    Chosen chosen;
    std::vector<float> out(64);
    stage.Attend(input, out, &chosen);
    return std::ranges::find(chosen.taken[0], true) - chosen.taken[0].begin();
  };
  std::vector<double> one(128, 0.1), two(96, 0.1);
  one[40] = 9;
  two[70] = 9;
  stage.BeginPrompt();
  EXPECT_EQ(first(one), 1);
  stage.BeginPrompt();
  EXPECT_EQ(first(two), 2);
}

/// One probed dot that is no number: the block is chosen, and attention over it
/// refuses the query.
TEST(SparseTopK, AProbeThatIsNoNumberIsNotPassedOver) {
  TestHead head(640, 64, 1, 50);
  for (float& x : head.Key(8 * 32 + 4)) x = 3e38f;
  head.Key(8 * 32 + 4)[1] = -3e38f;
  head.Query(0)[0] = head.Query(0)[1] = 1e20f;  // inf - inf
  std::vector<float> out(64);
  SparseTopK stage(PrimitivesFor(BestIsa()), {.k = 2});
  EXPECT_THROW(stage.Attend(head.Input(), out, nullptr), Error);
}

}  // namespace
}  // namespace kvlab
