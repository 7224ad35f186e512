#include "day09_kv_q8/three_pass.h"

#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "common/base/error.h"
#include "tests/support/kv.h"

namespace kvlab {
namespace {

std::vector<float> Attention(TestHead& head, Isa isa = BestIsa()) {
  const AttendInput input = head.Input();
  std::vector<float> out(input.group * input.kv.head_dim, -99.0f);
  ThreePass(PrimitivesFor(isa)).Attend(input, out, nullptr);
  return out;
}

std::string ErrorOf(TestHead& head, Isa isa) {
  try {
    Attention(head, isa);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class ThreePassShapes
    : public testing::TestWithParam<std::tuple<int, int, int>> {};

/// Against the same sums in double. An f32 dot of d products is off by at most
/// about d/16 + 4 roundings, a score by as much of max|score| (below 40 here);
/// a weight then by 40 * 12 * 2^-24 = 3e-5 relative in the worst case and far
/// less on average; 1e-5 of the largest output leaves a wide margin to any
/// mistake (a lost tail token changes the output by 1/n of it).
TEST_P(ThreePassShapes, AgreesWithDouble) {
  const auto [n, d, group] = GetParam();
  TestHead head(n, d, group, 1);
  EXPECT_TRUE(WithinRelativeMax<double>(Attention(head), head.Exact(), 1e-5));
}

TEST_P(ThreePassShapes, SameBitsOnEveryIsa) {
  const auto [n, d, group] = GetParam();
  TestHead head(n, d, group, 2);
  for (const Isa isa : BuiltIsas()) {
    if (!CpuHas(isa)) continue;  // primitives_test lists it as skipped
    EXPECT_TRUE(SameBits(Attention(head, isa), Attention(head, Isa::kScalar)))
        << IsaName(isa);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ThreePassShapes,
                         testing::Combine(testing::Values(1, 31, 32, 33, 63, 64,
                                                          127, 128, 129, 1000),
                                          testing::Values(8, 32, 64, 80, 96,
                                                          128, 256),
                                          testing::Values(1, 2, 4)),
                         [](const auto& test) {
                           return StrCat("n", std::get<0>(test.param), "_d",
                                         std::get<1>(test.param), "_group",
                                         std::get<2>(test.param));
                         });

TEST(ThreePass, OneTokenIsItsValue) {
  TestHead head(1, 64, 2, 3);
  const auto out = Attention(head);
  for (int i = 0; i < 128; ++i) EXPECT_EQ(out[i], head.Value(0)[i % 64]);
}

/// Scores of about -2e5 are an ordinary softmax: the maximum starts from the
/// scores, not from a finite guess.
TEST(ThreePass, VeryNegativeScores) {
  TestHead head(100, 64, 1, 4);
  for (int i = 0; i < 64; ++i) {
    head.Query(0)[i] = 1000;
    for (int t = 0; t < 100; ++t) head.Key(t)[i] = -25 - 0.001f * float(t % 7);
  }
  EXPECT_TRUE(WithinRelativeMax<double>(Attention(head), head.Exact(), 3e-2));
}

TEST(ThreePass, EqualScoresAverageTheValues) {
  TestHead head(129, 32, 1, 5);
  for (float& x : head.Query(0)) x = 0;
  EXPECT_TRUE(WithinRelativeMax<double>(Attention(head), head.Exact(), 1e-6));
}

TEST(ThreePass, OneHugeScoreTakesAll) {
  TestHead head(200, 64, 1, 6);
  for (int i = 0; i < 64; ++i) head.Key(77)[i] = 1e3f * head.Query(0)[i];
  const auto out = Attention(head);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], head.Value(77)[i]);
}

TEST(ThreePass, RefusesWhatIsNotFinite) {
  for (const Isa isa : BuiltIsas()) {
    if (!CpuHas(isa)) continue;
    for (const float bad :
         {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      TestHead head(40, 64, 2, 7);
      head.Query(1)[63] = bad;
      const std::string error = ErrorOf(head, isa);
      EXPECT_NE(error.find("the query is not finite (element 63"),
                std::string::npos)
          << error;
      EXPECT_NE(error.find("layer 1, head 3, position 39"), std::string::npos)
          << error;
    }
    // Finite rows whose scores overflow.
    TestHead head(40, 64, 2, 8);
    for (float& x : head.Query(0)) x = 3e38f;
    for (float& x : head.Key(33)) x = 3e38f;
    const std::string error = ErrorOf(head, isa);
    EXPECT_NE(error.find("the softmax total is"), std::string::npos) << error;
    EXPECT_NE(error.find("layer 1, head 2, position 39"), std::string::npos)
        << error;
  }
}

/// Values of tokens beyond n are never read.
TEST(ThreePass, ReadsOnlyTheTokensOfTheView) {
  TestHead head(64, 64, 1, 9);
  AttendInput input = head.Input();
  input.kv = input.kv.First(33);
  input.position = 32;
  std::vector<float> before(64), after(64);
  ThreePass stage(PrimitivesFor(BestIsa()));
  stage.Attend(input, before, nullptr);
  for (int t = 33; t < 64; ++t) {
    for (float& x : head.Key(t)) x = std::nanf("");
    for (float& x : head.Value(t)) x = std::nanf("");
  }
  stage.Attend(input, after, nullptr);
  EXPECT_TRUE(SameBits(before, after));
}

TEST(ThreePass, ShowsScoresAndWeights) {
  struct Recorder : Observer {
    std::vector<float> scores, weights;
    float max = 0, total = 0;
    int heads = 0;
    void OnScores(const HeadId& id, std::span<const float> s) override {
      EXPECT_EQ(id.head, 2 + heads);
      scores.assign(s.begin(), s.end());
    }
    void OnWeights(const HeadId&, std::span<const float> w, float m,
                   float t) override {
      weights.assign(w.begin(), w.end());
      max = m;
      total = t;
      ++heads;
    }
  } recorder;
  TestHead head(70, 32, 2, 10);
  std::vector<float> out(64);
  ThreePass(PrimitivesFor(BestIsa())).Attend(head.Input(), out, &recorder);
  EXPECT_EQ(recorder.heads, 2);
  ASSERT_EQ(recorder.scores.size(), 70u);
  ASSERT_EQ(recorder.weights.size(), 70u);
  EXPECT_EQ(recorder.max, *std::ranges::max_element(recorder.scores));
  double total = 0;
  for (const float w : recorder.weights) total += w;
  EXPECT_NEAR(recorder.total, total, 1e-5 * total);
  EXPECT_TRUE(SameBits(out, Attention(head)));  // watching changes nothing
}

/// The exact default of Prefill against Attend at each position.
TEST(ThreePass, PrefillEqualsDecodeBitForBit) {
  for (const int d : {8, 64, 80, 128}) {
    constexpr int kTokens = 100, kGroup = 2;
    TestHead head(kTokens, d, kGroup, 11);
    const int stride = QueryStride(d);
    // The queries of all positions.
    std::vector<float> queries(std::size_t(kTokens) * kGroup * stride);
    const auto random = RandomFloats(std::size_t(kTokens) * kGroup * d, 12);
    for (int r = 0; r < kTokens * kGroup; ++r) {
      std::copy_n(&random[r * d], d, &queries[r * stride]);
    }
    ThreePass stage(PrimitivesFor(BestIsa()));
    for (const int first : {0, 1, 31, 64}) {
      const PrefillInput input{.layer = 0,
                               .first_head = 0,
                               .first_position = first,
                               .count = kTokens - first,
                               .group = kGroup,
                               .queries = &queries[first * kGroup * stride],
                               .position_stride = kGroup * stride,
                               .kv = head.Input().kv};
      std::vector<float> out(std::size_t(kTokens - first) * kGroup * d);
      stage.Prefill(input, nullptr,
                    {.data = out.data(), .position_stride = kGroup * d});
      for (int p = first; p < kTokens; ++p) {
        const AttendInput one{.position = p,
                              .group = kGroup,
                              .queries = std::span(queries).subspan(
                                  p * kGroup * stride, kGroup * stride),
                              .kv = head.Input().kv.First(p + 1)};
        std::vector<float> expected(kGroup * d);
        stage.Attend(one, expected, nullptr);
        ASSERT_TRUE(SameBits(
            std::span(out).subspan((p - first) * kGroup * d, kGroup * d),
            expected))
            << "d " << d << ", first " << first << ", position " << p;
      }
    }
  }
}

TEST(ThreePass, PrefillRecordsEachQueryOnce) {
  constexpr int kTokens = 77, kGroup = 3;
  TestHead head(kTokens, 32, kGroup * kTokens, 13);
  std::vector<double> mass(kGroup * 100, 0.0);
  const AttendInput all = head.Input();
  const PrefillInput input{.first_position = 0,
                           .count = kTokens,
                           .group = kGroup,
                           .queries = all.queries.data(),
                           .position_stride = kGroup * QueryStride(32),
                           .kv = all.kv};
  ImportanceSink sink{.mass = mass.data(), .head_stride = 100};
  std::vector<float> out(std::size_t(kTokens) * kGroup * 32);
  ThreePass(PrimitivesFor(BestIsa()))
      .Prefill(input, &sink,
               {.data = out.data(), .position_stride = kGroup * 32});
  for (int g = 0; g < kGroup; ++g) {
    double sum = 0;
    for (int s = 0; s < 100; ++s) sum += mass[g * 100 + s];
    EXPECT_NEAR(sum, kTokens, 1e-6 * kTokens) << g;
    for (int s = kTokens; s < 100; ++s) EXPECT_EQ(mass[g * 100 + s], 0);
  }
}

}  // namespace
}  // namespace kvlab
