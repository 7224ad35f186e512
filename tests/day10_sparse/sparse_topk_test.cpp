/// Stage 4: exact when all blocks are chosen, blind to those that are not.
#include "day10_sparse/sparse_topk.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "day09_kv_q8/three_pass.h"
#include "day09_kv_q8/two_pass.h"
#include "tests/support/compare.h"
#include "tests/support/kv.h"

namespace kvlab {
namespace {

std::vector<float> AttendWith(AttentionStage& stage, const AttendInput& input,
                              Observer* observer = nullptr) {
  std::vector<float> out(std::size_t(input.group) * input.kv.head_dim,
                         std::nanf(""));
  stage.Attend(input, out, observer);
  return out;
}

std::vector<float> Sparse(const AttendInput& input,
                          const SparseOptions& options, Isa isa = BestIsa()) {
  SparseTopK stage(PrimitivesFor(isa), options);
  return AttendWith(stage, input);
}

std::vector<float> Dense(const AttendInput& input) {
  ThreePass three(PrimitivesFor(BestIsa()));
  TwoPass two(PrimitivesFor(BestIsa()), false);
  return input.kv.format == KvFormat::kF32 ? AttendWith(three, input)
                                           : AttendWith(two, input);
}

/// Remembers what was chosen for each head.
class Watch final : public Observer {
 public:
  void OnSelection(const HeadId& id, int block_tokens,
                   std::span<const BlockEvent> blocks) override {
    heads.push_back(id.head);
    tokens = block_tokens;
    events.emplace_back(blocks.begin(), blocks.end());
  }
  std::vector<int> heads;
  int tokens = 0;
  std::vector<std::vector<BlockEvent>> events;
};

std::vector<double> RandomImportance(int n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<double> x(n);
  for (double& v : x) v = static_cast<double>(random() % 1000) / 100;
  return x;
}

TEST(SparseTopK, AllBlocksAreExactAttentionBitForBit) {
  for (const int n : {1, 31, 32, 33, 100, 1700, 2061}) {
    TestHead head(n, 128, 2, 21);
    const auto importance = RandomImportance(n, 3);
    for (const bool q8 : {false, true}) {
      AttendInput input = q8 ? head.Q8Input() : head.Input();
      const auto dense = Dense(input);
      for (const int block : {16, 32, 64}) {
        const int blocks = BlockCount(n, block);
        for (const int k : {blocks, blocks + 1, 1000}) {
          input.importance = importance;
          EXPECT_TRUE(
              SameBits(Sparse(input, {.k = k, .block_tokens = block}), dense))
              << "n " << n << ", q8 " << q8 << ", block " << block << ", k "
              << k;
          input.importance = {};
          EXPECT_TRUE(
              SameBits(Sparse(input, {.k = k, .block_tokens = block}), dense))
              << "without importance, n " << n;
        }
        EXPECT_TRUE(SameBits(
            Sparse(input,
                   {.k = 1, .block_tokens = block, .dense_below = n + 1}),
            dense));
        if (blocks > 1) {
          EXPECT_FALSE(SameBits(
              Sparse(input, {.k = 1, .block_tokens = block, .dense_below = n}),
              dense));
        }
      }
    }
  }
}

/// Exact attention over the chosen tokens alone, copied into a cache of their
/// own.
TEST(SparseTopK, IsThreePassAttentionOverTheChosenTokens) {
  const int n = 500, d = 64, group = 4;
  TestHead head(n, d, group, 22);
  AttendInput input = head.Input();
  const auto importance = RandomImportance(n, 4);
  input.importance = importance;
  for (const int k : {1, 2, 3, 4, 7}) {
    SparseTopK stage(PrimitivesFor(BestIsa()), {.k = k});
    Watch watch;
    const auto out = AttendWith(stage, input, &watch);
    ASSERT_EQ(watch.heads, (std::vector<int>{2, 3, 4, 5}));
    ASSERT_EQ(watch.tokens, 32);
    for (int g = 0; g < group; ++g) {
      std::vector<int> tokens;
      for (std::size_t b = 0; b < watch.events[g].size(); ++b) {
        if (!watch.events[g][b].taken) continue;
        for (int t = int(b) * 32; t < std::min(n, int(b + 1) * 32); ++t) {
          tokens.push_back(t);
        }
      }
      TestHead copy(static_cast<int>(tokens.size()), d, 1, 1);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        std::ranges::copy(head.Key(tokens[i]), copy.Key(int(i)).begin());
        std::ranges::copy(head.Value(tokens[i]), copy.Value(int(i)).begin());
      }
      std::ranges::copy(head.Query(g), copy.Query(0).begin());
      EXPECT_TRUE(SameBits(std::span(out).subspan(std::size_t(g) * d, d),
                           Dense(copy.Input())))
          << "k " << k << ", head " << g;
    }
  }
}

TEST(SparseTopK, ProbesAreTheLargestSampledDots) {
  const int n = 131, d = 128;
  TestHead head(n, d, 1, 23);
  for (const bool q8 : {false, true}) {
    const AttendInput input = q8 ? head.Q8Input() : head.Input();
    for (const int n_probe : {0, 1, 8, 32, 100}) {
      SparseTopK stage(PrimitivesFor(BestIsa()), {.k = 2, .n_probe = n_probe});
      Watch watch;
      AttendWith(stage, input, &watch);
      for (int b = 0; b < 5; ++b) {
        const int first = b * 32, last = std::min(n, first + 32);
        const int step = std::max(1, (last - first) / std::max(1, n_probe));
        float expected = -1e30f;
        for (int t = first; t < last; t += step) {
          const Primitives& p = PrimitivesFor(Isa::kScalar);
          float dot = 0;
          if (q8) {
            const QuantisedQuery query(p, input.Query(0), input.kv.stride);
            const TileScoresQ8 one{query.view(), &dot};
            p.dot_keys_q8(&one, 1, input.kv.KeysQ8(t, 1), 1.0f);
          } else {
            dot = p.dot(input.Query(0), input.kv.Key(t), input.kv.stride);
          }
          expected = std::max(expected, dot);
        }
        EXPECT_EQ(watch.events[0][b].probe, expected)
            << "block " << b << ", n_probe " << n_probe << ", q8 " << q8;
      }
    }
  }
}

TEST(SparseTopK, SameBitsOnEveryIsa) {
  for (const int n : {33, 100, 1000}) {
    TestHead head(n, 80, 2, 24);
    for (const bool q8 : {false, true}) {
      AttendInput input = q8 ? head.Q8Input() : head.Input();
      const auto importance = RandomImportance(n, 5);
      input.importance = importance;
      for (const int k : {1, 2, 5}) {
        const auto scalar = Sparse(input, {.k = k}, Isa::kScalar);
        for (const Isa isa : BuiltIsas()) {
          if (!CpuHas(isa)) continue;  // simd_test lists it as skipped
          EXPECT_TRUE(SameBits(Sparse(input, {.k = k}, isa), scalar))
              << IsaName(isa) << ", n " << n << ", q8 " << q8 << ", k " << k;
        }
      }
    }
  }
}

TEST(SparseTopK, HeadsOfAGroupChooseForThemselves) {
  TestHead head(640, 64, 2, 25);
  SparseTopK stage(PrimitivesFor(BestIsa()), {.k = 4});
  Watch watch;
  AttendWith(stage, head.Input(), &watch);
  const auto taken = [&](int g) {
    std::vector<bool> blocks;
    for (const BlockEvent& e : watch.events[g]) blocks.push_back(e.taken);
    return blocks;
  };
  EXPECT_NE(taken(0), taken(1));
}

TEST(SparseTopK, UnchosenValuesMayBeAnything) {
  TestHead head(640, 64, 2, 26);
  SparseTopK stage(PrimitivesFor(BestIsa()), {.k = 3});
  Watch watch;
  const auto out = AttendWith(stage, head.Input(), &watch);
  int poisoned = 0;
  for (int b = 0; b < 20; ++b) {
    if (watch.events[0][b].taken || watch.events[1][b].taken) continue;
    ++poisoned;
    for (int t = b * 32; t < (b + 1) * 32; ++t) {
      for (float& x : head.Value(t)) x = std::nanf("");
    }
  }
  EXPECT_GE(poisoned, 14);
  EXPECT_TRUE(SameBits(AttendWith(stage, head.Input()), out));
}

/// Values of blocks that were not chosen lie in pages that may not be read.
TEST(SparseTopK, UnchosenValuesAreNeverRead) {
  // 16 KB of values a block at head_dim 128, in pages of at most that.
  const long page = sysconf(_SC_PAGESIZE);
  ASSERT_EQ((32 * 128 * 4) % page, 0);
  const int n = 640, d = 128;
  TestHead head(n, d, 1, 27);
  SparseTopK stage(PrimitivesFor(BestIsa()), {.k = 3});
  Watch watch;
  const auto out = AttendWith(stage, head.Input(), &watch);

  const std::size_t bytes = std::size_t(n) * d * sizeof(float);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  AttendInput input = head.Input();
  std::memcpy(memory, input.kv.values, bytes);
  input.kv.values = static_cast<const float*>(memory);
  int closed = 0;
  for (std::size_t b = 0; b < watch.events[0].size(); ++b) {
    if (watch.events[0][b].taken) continue;
    ++closed;
    ASSERT_EQ(mprotect(static_cast<std::byte*>(memory) + b * 32 * d * 4,
                       std::size_t{32} * d * 4, PROT_NONE),
              0);
  }
  EXPECT_EQ(closed, 17);
  EXPECT_TRUE(SameBits(AttendWith(stage, input), out));
  munmap(memory, bytes);
}

TEST(SparseTopK, ImportanceIsOfThePrompt) {
  const int n = 200;
  TestHead head(n, 64, 1, 28);
  AttendInput input = head.Input();
  // The prompt had 96 tokens; its third block was looked at most, though only
  // by few queries: per viewer the second wins.
  std::vector<double> importance(96, 0.01);
  importance[70] = 9;
  importance[40] = 8.9;
  input.importance = importance;
  const auto first = [&](ImportanceUse use) {
    SparseTopK stage(PrimitivesFor(BestIsa()), {.k = 1, .importance = use});
    Watch watch;
    AttendWith(stage, input, &watch);
    for (std::size_t b = 0; b < watch.events[0].size(); ++b) {
      if (watch.events[0][b].taken) return int(b);
    }
    return -1;
  };
  EXPECT_EQ(first(ImportanceUse::kRaw), 2);
  // 9 / 26 viewers against 8.9 / 56.
  EXPECT_EQ(first(ImportanceUse::kPerViewer), 2);
  importance[40] = 25;
  EXPECT_EQ(first(ImportanceUse::kRaw), 1);
  // 9 / 26 = 0.346 against 25 / 56 = 0.446; then 15 / 56 = 0.268.
  EXPECT_EQ(first(ImportanceUse::kPerViewer), 1);
  importance[40] = 15;
  EXPECT_EQ(first(ImportanceUse::kRaw), 1);
  EXPECT_EQ(first(ImportanceUse::kPerViewer), 2);
  // Off: nothing is reserved, k = 1 is the last block.
  EXPECT_EQ(first(ImportanceUse::kOff), 6);
}

/// Every prompt query attends as Attend would at its position, and the record
/// is of what it looked at.
TEST(SparseTopK, SparsePrefill) {
  const int n = 150, d = 64, group = 2;
  TestHead head(n, d, group, 29);
  const AttendInput whole = head.Input();
  const SparseOptions options{.k = 2, .sparse_prefill = true};
  SparseTopK stage(PrimitivesFor(BestIsa()), options);
  // Each position asks with the same two queries.
  PrefillInput input{.layer = 1,
                     .first_head = 2,
                     .first_position = 0,
                     .count = n,
                     .group = group,
                     .queries = whole.queries.data(),
                     .position_stride = 0,
                     .kv = whole.kv};
  std::vector<float> out(std::size_t(n) * group * d);
  std::vector<double> mass(std::size_t(group) * n, 0.0);
  ImportanceSink sink{mass.data(), n};
  stage.Prefill(input, &sink, {out.data(), group * d});
  for (int position = 0; position < n; ++position) {
    AttendInput at = whole;
    at.position = position;
    at.kv = whole.kv.First(position + 1);
    EXPECT_TRUE(SameBits(
        std::span(out).subspan(std::size_t(position) * group * d, group * d),
        Sparse(at, options)))
        << position;
  }
  for (int g = 0; g < group; ++g) {
    const double total =
        std::accumulate(mass.begin() + g * n, mass.begin() + (g + 1) * n, 0.0);
    EXPECT_NEAR(total, n, 1e-6 * n) << "head " << g;
  }
  // Exact prefill is another.
  SparseTopK exact(PrimitivesFor(BestIsa()), {.k = 2});
  std::vector<float> dense(out.size());
  exact.Prefill(input, nullptr, {dense.data(), group * d});
  EXPECT_FALSE(SameBits(dense, out));
}

/// The engine calls one stage for several KV heads at once.
TEST(SparseTopK, HeadsMayChooseAtTheSameTime) {
  TestHead head(500, 64, 2, 33);
  AttendInput input = head.Input();
  const auto importance = RandomImportance(400, 6);
  input.importance = importance;
  const SparseOptions options{.k = 3, .importance = ImportanceUse::kPerViewer};
  const auto expected = Sparse(input, options);
  // No clock, whose counters would order the threads: ThreadSanitizer is to see
  // what the stage itself does.
  SparseTopK stage(PrimitivesFor(BestIsa()), options);
  std::vector<std::vector<float>> outs(8);
  std::vector<std::thread> threads;
  for (auto& out : outs) {
    threads.emplace_back([&] { out = AttendWith(stage, input); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& out : outs) EXPECT_TRUE(SameBits(out, expected));
}

TEST(SparseTopK, TellsWhatChoosingTakes) {
  TestHead head(500, 64, 2, 33);
  SparseTopK stage(PrimitivesFor(BestIsa()), {.k = 3});
  SparseTimes times;
  stage.Time(&times);
  AttendWith(stage, head.Input());
  const double share = times.TakeSelectShare();
  EXPECT_GT(share, 0);
  EXPECT_LT(share, 1);
  EXPECT_EQ(times.TakeSelectShare(), 0) << "taken";
}

TEST(SparseTopK, RefusesWhatExactAttentionRefuses) {
  TestHead head(100, 64, 1, 30);
  head.Query(0)[3] = std::nanf("");
  EXPECT_THROW(Sparse(head.Input(), {.k = 2}), Error);
  TestHead large(100, 64, 1, 31, 1e25f);
  EXPECT_THROW(Sparse(large.Input(), {.k = 2}), Error);
}

}  // namespace
}  // namespace kvlab
