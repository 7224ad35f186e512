/// The needle lab's parts, without a model.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "common/base/error.h"
#include "common/lab/csv.h"
#include "common/lab/progress_line.h"
#include "common/lab/text_table.h"
#include "day10_sparse/needle_arms.h"
#include "day10_sparse/needle_grid_report.h"
#include "day10_sparse/needle_report.h"
#include "day10_sparse/needle_why.h"

namespace kvlab {
namespace {

testing::AssertionResult Has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << "\"" << part << "\" is not in \"" << text << "\"";
}

// --- Arms
// ---------------------------------------------------------------------

const std::vector<float> kProbes = {1, 7, 3, 7, 2, 5};
const std::vector<double> kImportance = {9, 1, 4, 4, 0, 8};
const std::vector<double> kMasses = {0.1, 0.1, 0.1, 0.2, 0.4, 0.1};

std::vector<int> Chosen(BlockArm arm, int k, std::uint64_t seed = 1,
                        HeadId id = {}) {
  const SelectionInput input{.k = k,
                             .probes = kProbes,
                             .importance = kImportance,
                             .masses = kMasses,
                             .id = id};
  const auto selector = MakeArm(arm, seed);
  const Selection selection = selector->Select(input);
  EXPECT_EQ(selector->needs_masses(), arm == BlockArm::kOracle);
  EXPECT_EQ(selection.reasons.size(), kProbes.size());
  for (std::size_t b = 0; b < kProbes.size(); ++b) {
    EXPECT_EQ(IsTaken(selection.reasons[b]),
              std::ranges::count(selection.blocks, static_cast<int>(b)) == 1);
  }
  // The same again, and from another selector of the kind.
  EXPECT_EQ(selector->Select(input).blocks, selection.blocks);
  EXPECT_EQ(MakeArm(arm, seed)->Select(input).blocks, selection.blocks);
  return selection.blocks;
}

TEST(NeedleArms, FillAllPlacesAndNoMore) {
  for (const BlockArm arm : kBlockArms) {
    for (const int k : {1, 2, 3, 5, 6, 7, 1000}) {
      const std::vector<int> blocks = Chosen(arm, k);
      EXPECT_EQ(std::ssize(blocks), std::min(k, 6)) << BlockArmName(arm);
      EXPECT_TRUE(std::ranges::is_sorted(blocks));
      EXPECT_EQ(std::ranges::adjacent_find(blocks), blocks.end());
      EXPECT_GE(blocks.front(), 0);
      EXPECT_LT(blocks.back(), 6);
    }
  }
}

/// Ties go to the smaller block, as in the article's way.
TEST(NeedleArms, EachKnowsOneThing) {
  using Blocks = std::vector<int>;
  EXPECT_EQ(Chosen(BlockArm::kOracle, 1), Blocks{4});
  EXPECT_EQ(Chosen(BlockArm::kOracle, 3), (Blocks{0, 3, 4}));
  EXPECT_EQ(Chosen(BlockArm::kProbe, 1), Blocks{1});
  EXPECT_EQ(Chosen(BlockArm::kProbe, 3), (Blocks{1, 3, 5}));
  EXPECT_EQ(Chosen(BlockArm::kImportance, 3), (Blocks{0, 2, 5}));
  EXPECT_EQ(Chosen(BlockArm::kRecency, 2), (Blocks{4, 5}));
  EXPECT_EQ(Chosen(BlockArm::kArticle, 2), (Blocks{0, 5}));
}

TEST(NeedleArms, RandomDependsOnSeedLayerHeadAndPosition) {
  const auto differs = [](std::uint64_t seed, HeadId id) {
    int different = 0;
    for (int p = 0; p < 50; ++p) {
      HeadId moved = id;
      moved.position += p;
      different += Chosen(BlockArm::kRandom, 3, seed, moved) !=
                   Chosen(BlockArm::kRandom, 3, 1, {0, 0, p});
    }
    return different;
  };
  EXPECT_EQ(differs(1, {0, 0, 0}), 0);
  // Two draws of 3 of 6 agree once in 20: of 50, 47.5 differ.
  EXPECT_GT(differs(2, {0, 0, 0}), 30);
  EXPECT_GT(differs(1, {1, 0, 0}), 30);
  EXPECT_GT(differs(1, {0, 1, 0}), 30);
  EXPECT_GT(differs(1, {0, 0, 1000}), 30);
  // All blocks have their turn.
  std::vector<int> taken(6);
  for (int p = 0; p < 600; ++p) {
    for (const int b : Chosen(BlockArm::kRandom, 1, 1, {0, 0, p})) ++taken[b];
  }
  for (const int count : taken) EXPECT_GT(count, 50);  // of 100
}

// --- What was read
// -------------------------------------------------------------

std::vector<BlockEvent> Taking(std::size_t blocks, std::vector<int> taken) {
  std::vector<BlockEvent> events(blocks);
  for (const int b : taken) {
    events[b].taken = true;
    events[b].reason = "probe";
  }
  return events;
}

/// 70 tokens are blocks of 32, 32 and 6. A row that several heads read counts
/// once, and a probed key of a block that is read is one of its rows.
TEST(NeedleTrace, CountsRowsOnce) {
  ChoiceRecorder recorder({}, 8, 2);
  recorder.OnSelection({0, 0, 69}, 32, Taking(3, {0}));
  recorder.OnSelection({0, 1, 69}, 32, Taking(3, {0, 2}));
  EXPECT_EQ(recorder.RowsRead(), 2 * 32 + 8 + 2 * 6);
  recorder.OnSelection({0, 2, 69}, 32, Taking(3, {1}));
  recorder.OnSelection({0, 3, 69}, 32, Taking(3, {1}));
  recorder.OnSelection({1, 0, 69}, 32, Taking(3, {2}));
  EXPECT_EQ(recorder.RowsRead(),
            (2 * 32 + 8 + 2 * 6) + (8 + 2 * 32 + 6) + (8 + 8 + 2 * 6));
  EXPECT_EQ(recorder.summary().choices, 5);
}

// --- Why
// ----------------------------------------------------------------------

/// Choices of the article's way, over `steps` steps of 2 layers with 2 heads.
ChoiceSummary Choices(int k, std::vector<int> needle,
                      const std::vector<float>& probes,
                      const std::vector<double>& importance, int steps = 3) {
  ChoiceSummary summary;
  summary.needle = std::move(needle);
  const SelectionInput input{
      .k = k, .probes = probes, .importance = importance};
  const auto events = DescribeSelection(input, TopKSelector().Select(input));
  for (int position = 0; position < steps; ++position) {
    for (const int layer : {0, 1}) {
      for (const int head : {0, 1})
        summary.Add({layer, head, position}, events);
    }
  }
  return summary;
}

std::string Why(const ChoiceSummary& choices, bool sparse_prefill = false) {
  return WhyMissed({.found = false,
                    .exact_found = true,
                    .sparse_prefill = sparse_prefill,
                    .choices = choices});
}

TEST(NeedleWhy, NothingToSayOfSuccess) {
  EXPECT_EQ(WhyMissed({.found = true,
                       .exact_found = true,
                       .choices = Choices(1, {1}, {1, 2, 3}, {3, 2, 1})}),
            "");
}

TEST(NeedleWhy, ExactAttentionFailsToo) {
  const ChoiceSummary choices = Choices(1, {1}, {1, 2, 3}, {3, 2, 1});
  const std::string why = WhyMissed({.choices = choices});
  EXPECT_TRUE(Has(why, "exact attention misses it too"));
  EXPECT_FALSE(Has(why, "template"));
  EXPECT_FALSE(Has(why, "block"));
  EXPECT_TRUE(Has(WhyMissed({.raw = true, .choices = choices}),
                  "without its chat template"));
}

TEST(NeedleWhy, NothingWasChosen) {
  ChoiceSummary none;
  none.needle = {3};
  EXPECT_TRUE(Has(Why(none), "ended before the first step"));
  EXPECT_TRUE(Has(Why(Choices(1, {}, {1, 2, 3}, {3, 2, 1})),
                  "which blocks hold it is not known"));
}

/// k = 1: a place that importance has reserved.
TEST(NeedleWhy, ImportanceTookTheOnlyPlace) {
  const std::string why =
      Why(Choices(1, {2}, {1, 2, 9, 3, 4}, {300.4, 600.25, 200, 100, 0}));
  EXPECT_EQ(why,
            "the needle's block 2 was never read, in 12 choices (3 steps, 2 "
            "layers, 4 heads in all). The only place went to block 1 by "
            "importance (600, rank 1), 12 times. Block 2: importance 200, rank "
            "3 of 5; probe rank 1, best in layer 0, head 0.");
}

/// The same without importance: the needle had the largest probe.
TEST(NeedleWhy, RecencyTookTheOnlyPlace) {
  EXPECT_EQ(Why(Choices(1, {2}, {1, 2, 9, 3, 4}, {})),
            "the needle's block 2 was never read, in 12 choices (3 steps, 2 "
            "layers, 4 heads in all). The only place always went to the last "
            "block: recency took it 12 times. Block 2: probe rank 1, best in "
            "layer 0, head 0; 12 times its probe got it a place that recency "
            "then took.");
  ChoiceSummary mixed = Choices(1, {2}, {1, 2, 9, 3, 4}, {}, 1);
  const std::vector<float> last_first = {1, 2, 3, 4, 9};
  const SelectionInput input{.k = 1, .probes = last_first};
  mixed.Add({0, 0, 9}, DescribeSelection(input, TopKSelector().Select(input)));
  EXPECT_TRUE(Has(Why(mixed),
                  "recency took it 4 times, and where it did not, "
                  "the last block had the largest probe."));
}

TEST(NeedleWhy, SeveralPlaces) {
  // k = 4: two reserved, one by probe, one by recency; the needle's block is
  // evicted.
  const std::string why =
      Why(Choices(4, {2}, {1, 2, 5, 9, 4, 3}, {9, 8, 1, 1, 1, 0}));
  EXPECT_TRUE(Has(why,
                  "The places went to block 0 by importance (9.00, rank "
                  "1), 12 times; block 1 by importance (8.00, rank 2), 12 "
                  "times; block 3 by probe (rank 1), 12 times; the last "
                  "block by recency, 12 times."));
  EXPECT_TRUE(Has(why, "12 times its probe got it a place that recency"));
  // Of many only the most frequent are named.
  const std::string many =
      Why(Choices(10, {7}, {9, 9, 9, 9, 9, 9, 9, 1, 1, 1, 9},
                  {5, 5, 5, 5, 5, 0, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(Has(many, "and 2 other blocks"));
}

TEST(NeedleWhy, ReadAndWrongAllTheSame) {
  const ChoiceSummary all = Choices(2, {1}, {1, 9, 2}, {1, 9, 1});
  EXPECT_TRUE(Has(Why(all),
                  "the needle's block 1 was read in 12 of 12 choices, "
                  "by layer 0 (heads 0, 1), layer 1 (heads 0, 1), "
                  "and the answer is wrong all the same."));
  EXPECT_TRUE(Has(Why(all), "did not have them. The places went to block 1"));
  EXPECT_TRUE(Has(Why(all, true), "The prompt itself was read in as few"));
  // Half of it.
  const std::string half = Why(Choices(2, {0, 1}, {1, 9, 2}, {1, 9, 1}));
  EXPECT_TRUE(Has(half,
                  "blocks 0 and 1 were read in 12 of 12 choices, whole "
                  "in 0,"));
}

// --- The report
// ---------------------------------------------------------------

NeedleRun MakeRun(KvFormat kv, int k, bool sparse_prefill = false) {
  NeedleRun run{.stage = k == 0 ? "exact_stage" : "sparse_topk", .kv = kv};
  if (k > 0) {
    run.sparse = SparseOptions{.k = k, .sparse_prefill = sparse_prefill};
    run.mass = 0.5;
  }
  run.tokens = {1, 2, 3};
  run.stopped = true;
  run.output = "Zara's, \"favorite\"";
  run.found = k != 1;
  run.attention_ms = 1.5;
  run.total_ms = 2.5;
  run.prefill_s = sparse_prefill ? 0.5 : 1;
  run.read_bytes = 1000;
  run.exact_read_bytes = 2000;
  return run;
}

TEST(NeedleReport, SaysWhichRowResemblesTheArticles) {
  std::vector<NeedleRun> runs = {MakeRun(KvFormat::kQ8, 0),
                                 MakeRun(KvFormat::kQ8, 1),
                                 MakeRun(KvFormat::kQ8, 1, true)};
  runs[1].first_difference = 1;
  runs[2].first_difference = 0;
  runs[2].stopped = false;
  EXPECT_TRUE(Has(ArticleText(runs), "the second is nearer"));
  EXPECT_TRUE(Has(ArticleText(runs),
                  "with sparse prefill (*) it is wrong from token 1 and "
                  "unfinished after 3, its prefill takes 50 % of the time"));
  std::swap(runs[1].first_difference, runs[2].first_difference);
  runs[1].stopped = false;
  runs[2].stopped = true;
  EXPECT_TRUE(Has(ArticleText(runs), "the first is nearer"));
  runs[2].stopped = false;
  EXPECT_TRUE(Has(ArticleText(runs), "neither is nearer"));
  runs[0].found = false;
  EXPECT_EQ(ArticleText(runs), "");
  EXPECT_EQ(ArticleText({MakeRun(KvFormat::kQ8, 0), MakeRun(KvFormat::kQ8, 2)}),
            "");
}

TEST(NeedleReport, MarksWhatRanExactAndFitsTheScreen) {
  std::vector<NeedleRun> runs = {
      MakeRun(KvFormat::kF32, 0), MakeRun(KvFormat::kQ8, 0),
      MakeRun(KvFormat::kQ8, 64), MakeRun(KvFormat::kQ8, 1),
      MakeRun(KvFormat::kQ8, 1, true)};
  runs[2].ran_exact = true;
  runs[3].why = runs[4].why = "because.";
  const std::string text = NeedleText({}, runs, true);
  EXPECT_TRUE(Has(text, "k=64 ="));
  EXPECT_TRUE(Has(text, "= ran exact"));
  EXPECT_TRUE(Has(text, "  q8 k=1, q8 k=1 *: because.\n"));
  EXPECT_TRUE(Has(text, "All exact stages give the same answer."));
  runs.push_back(MakeRun(KvFormat::kF32, 1));
  runs.back().why = "because of 17.";
  runs.push_back(MakeRun(KvFormat::kQ8, 1));
  runs.back().why = "because of 18.";
  EXPECT_TRUE(Has(NeedleText({}, runs, true),
                  "  f32 k=1 (q8 k=1 alike, with other numbers): because of "
                  "17.\n"));
  runs[1].output = "other";
  runs[2].ran_exact = false;
  EXPECT_TRUE(Has(NeedleText({}, runs, true), "give different answers"));
  EXPECT_FALSE(Has(NeedleText({}, runs, true), "ran exact"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(NeedleReport, Csv) {
  EXPECT_EQ(CsvText({{{"a", nullptr}, {"b", "x,\"y\"\n"}},
                     {{"a", {{"c", 1}, {"d", true}}}, {"b", "plain"}}}),
            "b,a.c,a.d\n\"x,\"\"y\"\"\n\",,\nplain,1,true\n");
}

TEST(NeedleReport, Wraps) {
  EXPECT_EQ(Wrapped("aa bb cc", 7, 2), "  aa bb\n  cc\n");
  EXPECT_EQ(Wrapped("longer-than-all b", 7, 2), "  longer-than-all\n  b\n");
}

TEST(ProgressLineTest, RoughDurations) {
  EXPECT_EQ(RoughDuration(0), "0 s");
  EXPECT_EQ(RoughDuration(59.1), "60 s");
  EXPECT_EQ(RoughDuration(91), "2 min");
  EXPECT_EQ(RoughDuration(7200), "2 h");
  EXPECT_EQ(RoughDuration(1.0 / 0.0), "years");
}

// --- The grid
// ------------------------------------------------------------------

/// 2 contexts, 1 depth, 2 seeds; k = 1 and, exact on the shorter one, 4.
struct SmallGrid {
  SmallGrid() {
    settings.contexts = {64, 256};
    settings.depths = {0.5};
    settings.ks = {1, 4};
    settings.arms = {BlockArm::kArticle, BlockArm::kProbe};
    settings.seeds = 2;
    settings.max_tokens = 40;
    settings.prompt.needle.seed = 7;
    for (const UnitId& id : GridUnits(settings)) {
      results.units.push_back(
          {.id = id,
           .needle = "Leo plays the harp.",
           .exact = true,
           .sparse = {
               {false, false}, {true, true}, {true, false}, {true, true}}});
    }
  }
  GridSettings settings;
  GridResults results{settings, {}};
};

TEST(NeedleGrid, UnitsAreSeedBySeed) {
  const SmallGrid grid;
  ASSERT_EQ(grid.results.units.size(), 4u);
  EXPECT_EQ(grid.results.units[0].id, (UnitId{64, 0.5, 7}));
  EXPECT_EQ(grid.results.units[1].id, (UnitId{256, 0.5, 7}));
  EXPECT_EQ(grid.results.units[3].id, (UnitId{256, 0.5, 8}));
  EXPECT_EQ(grid.settings.units(), 4u);
  // 64 and 40 tokens are 4 blocks.
  EXPECT_TRUE(RanExact(grid.settings, 64, 4));
  EXPECT_FALSE(RanExact(grid.settings, 64, 3));
}

TEST(NeedleGrid, DrawsTheSameNeedleForTheSameSeed) {
  const FactBook book = FactBook::LoadShipped();
  EXPECT_EQ(DrawNeedle(book, 5), DrawNeedle(book, 5));
  EXPECT_NE(DrawNeedle(book, 5), DrawNeedle(book, 6));
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    EXPECT_TRUE(book.Parse(DrawNeedle(book, seed))) << DrawNeedle(book, seed);
  }
}

TEST(NeedleGrid, RowsAndText) {
  SmallGrid grid;
  grid.results.units[3].sparse[2].found = false;  // probe, k = 1, 256 tokens
  const auto rows = GridRows(grid.results);
  ASSERT_EQ(rows.size(), 2u * (1 + 2 * 2));
  EXPECT_EQ(rows[0]["arm"], "exact");
  EXPECT_EQ(rows[0]["recall"], 1);
  EXPECT_EQ(rows[2]["ran_exact"], true);
  EXPECT_EQ(rows[8]["arm"], "probe");
  EXPECT_EQ(rows[8]["k"], 1);
  EXPECT_EQ(rows[8]["recall"], 0.5);
  EXPECT_EQ(rows[8]["prompts"], 2);
  const std::string text = GridText(grid.results);
  EXPECT_TRUE(Has(text, "       64       2  article         0  (100)    100"));
  EXPECT_TRUE(Has(text, "                   probe          50    100    100"));
  EXPECT_TRUE(Has(text, "No arm finds more than exact attention."));
}

/// A fault of the experiment until it is explained.
TEST(NeedleGrid, AnArmBetterThanExactIsSuspicious) {
  SmallGrid grid;
  grid.results.units[2].exact = false;
  const std::string text = GridText(grid.results);
  EXPECT_TRUE(Has(text,
                  "SUSPICIOUS: probe with k = 1 finds 4, exact attention "
                  "3; look at --context 64 --depth 0.5 --seed 8 --needle "
                  "\"Leo plays the harp.\""));
  EXPECT_FALSE(Has(text, "SUSPICIOUS: article with k = 1"));
}

TEST(NeedleGrid, PictureScripts) {
  const SmallGrid grid;
  const std::string map = GridHeatmapScript(grid.results, "of it's kind");
  EXPECT_TRUE(Has(map, "'of it''s kind"));
  EXPECT_TRUE(Has(map, "0 0 \"0\" 0xffffff"));
  EXPECT_TRUE(Has(map, "0 0 \"100 all\" 0x101828"));
  EXPECT_TRUE(Has(map, "1 0 \"100\" 0x101828"));
  const std::string arms = GridArmsScript(grid.results, "x");
  EXPECT_TRUE(Has(arms, "$arm0_0 << END\n0 0\nEND"));  // k = 4 ran exact
  EXPECT_TRUE(Has(arms, "$arm1_1 << END\n0 100\n1 100\nEND"));
}

}  // namespace
}  // namespace kvlab
