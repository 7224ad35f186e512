/// The choice of blocks against the rules read word by word, and by example.
#include "day10_sparse/block_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/base/error.h"

namespace kvlab {
namespace {

using Reasons = std::vector<BlockReason>;
constexpr auto kI = BlockReason::kImportance;
constexpr auto kP = BlockReason::kProbe;
constexpr auto kR = BlockReason::kRecency;
constexpr auto kLow = BlockReason::kLowerProbe;
constexpr auto kEvicted = BlockReason::kEvictedByRecency;

Selection Select(int k, const std::vector<float>& probes,
                 const std::vector<double>& importance = {}) {
  return TopKSelector().Select(
      {.k = k, .probes = probes, .importance = importance});
}

/// The rules as they are written, one block at a time: no sorting.
Reasons ByTheRules(int k, const std::vector<float>& probes,
                   const std::vector<double>& importance) {
  const int blocks = static_cast<int>(probes.size());
  Reasons reasons(probes.size(), kLow);
  int taken = 0;
  const auto best = [&](auto value) {
    int found = -1;
    for (int b = 0; b < blocks; ++b) {
      if (reasons[b] != kLow) continue;
      if (found < 0 || value(b) > value(found)) found = b;
    }
    return found;
  };
  if (!importance.empty()) {
    for (int i = 0; i < (k + 1) / 2 && taken < blocks; ++i, ++taken) {
      reasons[best([&](int b) { return importance[b]; })] = kI;
    }
  }
  int last_filled = -1;
  for (; taken < k && taken < blocks; ++taken) {
    last_filled = best([&](int b) { return double{probes[b]}; });
    reasons[last_filled] = kP;
  }
  if (reasons[blocks - 1] == kLow && last_filled >= 0) {
    reasons[last_filled] = kEvicted;
    reasons[blocks - 1] = kR;
  }
  return reasons;
}

TEST(BlockSelection, FollowsTheRulesOnRandomCases) {
  std::mt19937 random(10);
  int evicted = 0, full = 0, tied = 0;
  for (int round = 0; round < 10'000; ++round) {
    const int blocks = 1 + static_cast<int>(random() % 40);
    const int k = 1 + static_cast<int>(random() % 40);
    // Few different values, so that most cases have ties; zeros of both signs.
    const int values = 1 + static_cast<int>(random() % 12);
    std::vector<float> probes(blocks);
    std::vector<double> importance(random() % 3 == 0 ? 0 : blocks);
    for (float& p : probes) {
      p = static_cast<float>(random() % values) -
          static_cast<float>(values / 2);
      if (p == 0 && random() % 2 == 0) p = -0.0f;
    }
    for (double& x : importance) x = static_cast<double>(random() % values);
    const Selection selection = Select(k, probes, importance);
    const Reasons expected = ByTheRules(k, probes, importance);
    ASSERT_EQ(selection.reasons, expected)
        << "round " << round << ", blocks " << blocks << ", k " << k;
    std::vector<int> taken;
    for (int b = 0; b < blocks; ++b) {
      if (IsTaken(expected[b])) taken.push_back(b);
    }
    ASSERT_EQ(selection.blocks, taken);
    ASSERT_EQ(static_cast<int>(taken.size()), std::min(k, blocks));
    evicted += std::ranges::count(expected, kEvicted) > 0;
    full += k >= blocks;
    std::ranges::sort(probes);
    tied += std::ranges::adjacent_find(probes) != probes.end();
  }
  // The cases that matter did come up.
  EXPECT_GT(evicted, 1000);
  EXPECT_GT(full, 1000);
  EXPECT_GT(tied, 5000);
}

// Who holds the places, by the number of places.
TEST(BlockSelection, PlacesOfSmallK) {
  const std::vector<float> probes = {1, 5, 9, 2, 3};
  const std::vector<double> importance = {7, 6, 1, 2, 0};
  EXPECT_EQ(Select(1, probes, importance).reasons,
            (Reasons{kI, kLow, kLow, kLow, kLow}));
  EXPECT_EQ(Select(2, probes, importance).reasons,
            (Reasons{kI, kLow, kEvicted, kLow, kR}));
  EXPECT_EQ(Select(3, probes, importance).reasons,
            (Reasons{kI, kI, kEvicted, kLow, kR}));
  EXPECT_EQ(Select(4, probes, importance).reasons,
            (Reasons{kI, kI, kP, kLow, kP}));
  EXPECT_EQ(Select(4, {1, 5, 9, 8, 3}, importance).reasons,
            (Reasons{kI, kI, kP, kEvicted, kR}));
  EXPECT_EQ(Select(1, probes).reasons,
            (Reasons{kLow, kLow, kEvicted, kLow, kR}));
  EXPECT_EQ(Select(1, probes).blocks, std::vector<int>{4});
}

TEST(BlockSelection, TheLastBlockIsNotAddedTwice) {
  EXPECT_EQ(Select(2, {1, 2, 3}).reasons, (Reasons{kLow, kP, kP}));
  EXPECT_EQ(Select(2, {1, 2, 3}, {0, 1, 5}).reasons, (Reasons{kLow, kP, kI}));
}

TEST(BlockSelection, TiesGoToTheSmallerBlock) {
  EXPECT_EQ(Select(3, {4, 4, 4, 4, 4}).reasons,
            (Reasons{kP, kP, kEvicted, kLow, kR}));
  EXPECT_EQ(Select(2, {-0.0f, 0.0f, -0.0f}).blocks, (std::vector<int>{0, 2}));
  EXPECT_EQ(Select(2, {0.0f, -0.0f, 0.0f}).blocks, (std::vector<int>{0, 2}));
}

/// A probe that is no number must not confuse the order, and its block is
/// taken, so that attention over it refuses the query.
TEST(BlockSelection, TakesTheBlockOfAProbeThatIsNoNumber) {
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Select(2, {1, 2, nan, 4, 3}).blocks, (std::vector<int>{2, 4}));
  EXPECT_EQ(Select(3, {infinity, 2, nan, 4, 3}).blocks,
            (std::vector<int>{0, 2, 4}));
}

TEST(BlockSelection, Probes) {
  const auto tokens = [](int block, int n, int block_tokens, int n_probe) {
    const ProbeTokens p = ProbesOf(block, n, block_tokens, n_probe);
    std::vector<int> all;
    for (int t = p.first; t < p.last; t += p.step) all.push_back(t);
    EXPECT_EQ(p.count(), static_cast<int>(all.size()));
    return all;
  };
  EXPECT_EQ(tokens(1, 100, 32, 8),
            (std::vector<int>{32, 36, 40, 44, 48, 52, 56, 60}));
  EXPECT_EQ(tokens(3, 100, 32, 8), (std::vector<int>{96, 97, 98, 99}));
  EXPECT_EQ(tokens(2, 65, 32, 8), (std::vector<int>{64}));
  // 31 tokens: step 3, eleven probes.
  EXPECT_EQ(tokens(0, 31, 32, 8).size(), 11u);
  EXPECT_EQ(tokens(0, 31, 32, 8).back(), 30);
  EXPECT_EQ(tokens(0, 64, 32, 0), (std::vector<int>{0}));
  EXPECT_EQ(tokens(0, 64, 32, 1), (std::vector<int>{0}));
  EXPECT_EQ(tokens(0, 64, 32, 32).size(), 32u);
  EXPECT_EQ(tokens(0, 64, 32, 100).size(), 32u);
  EXPECT_EQ(tokens(0, 64, 64, 100).size(), 64u);
  EXPECT_EQ(tokens(1, 64, 16, 8),
            (std::vector<int>{16, 18, 20, 22, 24, 26, 28, 30}));
}

TEST(BlockSelection, ImportanceOfBlocks) {
  const std::vector<double> importance = {1, 2, 4, 8, 16};
  // Two tokens were decoded after the prompt of five: they count 0.
  EXPECT_EQ(BlockImportance(importance, 7, 2),
            (std::vector<double>{3, 12, 16, 0}));
  EXPECT_EQ(BlockCount(1, 32), 1);
  EXPECT_EQ(BlockCount(32, 32), 1);
  EXPECT_EQ(BlockCount(33, 32), 2);
}

TEST(BlockSelection, DescribesEveryBlock) {
  const std::vector<float> probes = {1, 5, 9, 5};
  const std::vector<double> importance = {3, 3, 0, 1};
  const SelectionInput input{
      .k = 2, .probes = probes, .importance = importance};
  const auto rows = DescribeSelection(input, TopKSelector().Select(input));
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].reason, "importance");
  EXPECT_EQ(rows[1].reason, "lower_probe");
  EXPECT_EQ(rows[2].reason, "evicted_by_recency");
  EXPECT_EQ(rows[3].reason, "recency");
  EXPECT_EQ(rows[2].probe_rank, 1);
  EXPECT_EQ(rows[1].probe_rank, 2);
  EXPECT_EQ(rows[3].probe_rank, 3);
  EXPECT_EQ(rows[0].importance_rank, 1);
  EXPECT_EQ(rows[1].importance_rank, 2);
  EXPECT_TRUE(rows[3].taken);
  EXPECT_FALSE(rows[2].taken);
  const SelectionInput without{.k = 2, .probes = probes};
  EXPECT_EQ(DescribeSelection(without, TopKSelector().Select(without))[0]
                .importance_rank,
            0);
}

}  // namespace
}  // namespace kvlab
