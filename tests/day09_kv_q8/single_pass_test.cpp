/// Stages 2 and 3 and the two-pass contrast: against double, against each
/// other, and bit by bit between instruction sets.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "common/base/error.h"
#include "day09_kv_q8/online_softmax.h"
#include "day09_kv_q8/q8_single_pass.h"
#include "day09_kv_q8/three_pass.h"
#include "day09_kv_q8/two_pass.h"
#include "tests/support/compare.h"
#include "tests/support/kv.h"

namespace kvlab {
namespace {

template <typename Stage, typename... Options>
std::vector<float> Attention(const AttendInput& input, Isa isa,
                             Options... options) {
  std::vector<float> out(std::size_t(input.group) * input.kv.head_dim,
                         std::nanf(""));
  Stage(PrimitivesFor(isa), options...).Attend(input, out, nullptr);
  return out;
}

std::vector<float> Online(TestHead& head, int tile, Isa isa = BestIsa()) {
  return Attention<OnlineSoftmaxStage>(head.Input(), isa, tile);
}
std::vector<float> Q8(TestHead& head, int tile, Isa isa = BestIsa()) {
  return Attention<Q8SinglePass>(head.Q8Input(), isa, tile);
}
std::vector<float> Two(TestHead& head, bool rescan, Isa isa = BestIsa()) {
  return Attention<TwoPass>(head.Q8Input(), isa, rescan);
}

class SinglePassShapes
    : public testing::TestWithParam<std::tuple<int, int, int>> {};

/// The bounds are the course's own. An f32 sum over n weights of one sign, in
/// tiles, is off by about (n / 32 + 6) * 2^-24 in the worst case, 2e-6 at n =
/// 1000, and by the square root of that on random data; a weight by
/// max|score| * 2^-22, about 1e-6 for these inputs.
TEST_P(SinglePassShapes, AgreesWithDouble) {
  const auto [n, d, group] = GetParam();
  TestHead head(n, d, group, 1);
  const auto exact = head.Exact();
  const auto exact_q8 = head.ExactOfQ8();
  for (const int tile : {1, 32}) {
    EXPECT_TRUE(WithinRelativeMax<double>(Online(head, tile), exact, 2e-6))
        << "online, tile " << tile;
    EXPECT_TRUE(WithinRelativeMax<double>(Q8(head, tile), exact_q8, 2e-6))
        << "q8, tile " << tile;
  }
  EXPECT_TRUE(WithinRelativeMax<double>(Two(head, false), exact_q8, 2e-6));
}

/// Two orders of the same sums: 1e-6. Token by token, S is a sum of n terms one
/// after the other, whose rounding errors add up like a random walk: sqrt(n) *
/// 2^-24 is 1.9e-6 at n = 1000.
TEST_P(SinglePassShapes, AgreesWithTheThreePassForm) {
  const auto [n, d, group] = GetParam();
  TestHead head(n, d, group, 2);
  const auto three = Attention<ThreePass>(head.Input(), BestIsa());
  const auto two = Two(head, false);
  for (const int tile : {1, 32}) {
    const double allowed = tile == 1 && n == 1000 ? 1.9e-6 : 1e-6;
    EXPECT_TRUE(WithinRelativeL2(Online(head, tile), three, allowed))
        << "tile " << tile;
    EXPECT_TRUE(WithinRelativeL2(Q8(head, tile), two, allowed))
        << "tile " << tile;
  }
}

TEST_P(SinglePassShapes, SameBitsOnEveryIsa) {
  const auto [n, d, group] = GetParam();
  TestHead head(n, d, group, 3);
  for (const Isa isa : BuiltIsas()) {
    if (!CpuHas(isa)) continue;  // primitives_test lists it as skipped
    for (const int tile : {1, 32}) {
      EXPECT_TRUE(
          SameBits(Online(head, tile, isa), Online(head, tile, Isa::kScalar)))
          << IsaName(isa) << ", tile " << tile;
      EXPECT_TRUE(SameBits(Q8(head, tile, isa), Q8(head, tile, Isa::kScalar)))
          << IsaName(isa) << ", tile " << tile;
    }
    EXPECT_TRUE(SameBits(Two(head, false, isa), Two(head, false, Isa::kScalar)))
        << IsaName(isa);
  }
}

TEST_P(SinglePassShapes, RescanGivesTheSameBitsAsStoredScores) {
  const auto [n, d, group] = GetParam();
  TestHead head(n, d, group, 4);
  EXPECT_TRUE(SameBits(Two(head, true), Two(head, false)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, SinglePassShapes,
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

/// Everything that the running softmax showed.
struct TileRecorder : Observer {
  struct Tile {
    int head, first_token, count;
    OnlineStep step;
    float max, M, S;
  };
  std::vector<Tile> tiles;
  void OnTile(const HeadId& id, const TileEvent& event) override {
    tiles.push_back({id.head, event.first_token,
                     static_cast<int>(event.scores.size()), event.step,
                     *std::ranges::max_element(event.scores), event.M,
                     event.S});
  }
};

/// The article's task A: n steps with --tile 1, M never falls, and exactly the
/// steps with a new maximum rescale, by exp(M_before - M).
TEST(OnlineSoftmax, MNeverFallsAndOnlyANewMaximumRescales) {
  for (const int tile : {1, 32}) {
    for (const bool q8 : {false, true}) {
      TestHead head(100, 64, 2, 5, 1.5f);
      TileRecorder recorder;
      std::vector<float> out(128);
      if (q8) {
        Q8SinglePass(PrimitivesFor(BestIsa()), tile)
            .Attend(head.Q8Input(), out, &recorder);
      } else {
        OnlineSoftmaxStage(PrimitivesFor(BestIsa()), tile)
            .Attend(head.Input(), out, &recorder);
      }
      // Watching changes nothing.
      EXPECT_TRUE(SameBits(out, q8 ? Q8(head, tile) : Online(head, tile)));
      const int steps = (100 + tile - 1) / tile;
      ASSERT_EQ(recorder.tiles.size(), std::size_t(2 * steps));
      for (const int h : {2, 3}) {
        int step = 0, rescales = 0;
        float M = 0, S = 0;
        for (const TileRecorder::Tile& t : recorder.tiles) {
          if (t.head != h) continue;
          EXPECT_EQ(t.first_token, step * tile);
          EXPECT_EQ(t.count, std::min(tile, 100 - step * tile));
          if (step == 0) {
            EXPECT_EQ(t.M, t.max);
            EXPECT_FALSE(t.step.rescaled);
          } else {
            EXPECT_EQ(t.step.M_before, M);
            EXPECT_EQ(t.M, std::max(M, t.max));
            EXPECT_EQ(t.step.rescaled, t.max > M);
            EXPECT_EQ(t.step.rescaled, t.step.factor < 1);
            EXPECT_NEAR(t.step.factor, std::exp(double(M) - t.M), 1e-6);
          }
          rescales += t.step.rescaled;
          if (tile == 1 && !t.step.rescaled && step > 0) {
            EXPECT_GT(t.S, S);
          }
          M = t.M;
          S = t.S;
          ++step;
        }
        EXPECT_EQ(step, steps);
        EXPECT_GT(rescales, 0) << "nothing was tested";
      }
    }
  }
}

/// Scores of about -2e5, a first tile that weighs nothing beside a later one,
/// and one huge score.
TEST(OnlineSoftmax, ExtremeScores) {
  TestHead low(100, 64, 1, 6);
  for (int i = 0; i < 64; ++i) {
    low.Query(0)[i] = 1000;
    for (int t = 0; t < 100; ++t) low.Key(t)[i] = -25 - 0.001f * float(t % 7);
  }
  TestHead one(200, 64, 1, 7);
  for (int i = 0; i < 64; ++i) one.Key(77)[i] = 1e3f * one.Query(0)[i];
  for (const int tile : {1, 32}) {
    EXPECT_TRUE(
        WithinRelativeMax<double>(Online(low, tile), low.Exact(), 3e-2));
    EXPECT_TRUE(
        WithinRelativeMax<double>(Q8(low, tile), low.ExactOfQ8(), 3e-2));
    const auto out = Online(one, tile);
    for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], one.Value(77)[i]);
  }
}

/// Scores that overflow to -infinity weigh nothing, wherever they stand: what
/// three-pass does with them.
TEST(OnlineSoftmax, MinusInfinityWeighsNothing) {
  for (const int where : {0, 40, 99}) {
    TestHead head(100, 64, 1, 8);
    for (int i = 0; i < 64; ++i) {
      head.Query(0)[i] = 1e20f;
      for (int t = 0; t < 100; ++t) head.Key(t)[i] *= 1e-20f;
      head.Key(where)[i] = -1e30f;
    }
    for (const int tile : {1, 32}) {
      EXPECT_TRUE(WithinRelativeMax<float>(
          Online(head, tile), Attention<ThreePass>(head.Input(), BestIsa()),
          1e-6))
          << "at " << where << ", tile " << tile;
    }
  }
}

/// Rows of zeros, of one sign, and so small that their scale is subnormal.
TEST(Q8SinglePass, OddRows) {
  for (const float size : {0.0f, 1e-37f, 1e-42f, 0x1p-149f}) {
    TestHead head(70, 64, 1, 9);
    for (const int t : {0, 33, 69}) {
      for (float& x : head.Key(t)) x *= size;
      for (float& x : head.Value(t)) x *= size;
    }
    for (const int tile : {1, 32}) {
      EXPECT_TRUE(
          WithinRelativeMax<double>(Q8(head, tile), head.ExactOfQ8(), 2e-6))
          << size;
    }
  }
  TestHead zero(40, 64, 2, 10);
  for (int g = 0; g < 2; ++g) {
    for (float& x : zero.Query(g)) x = 0;
  }
  EXPECT_TRUE(WithinRelativeMax<double>(Q8(zero, 32), zero.ExactOfQ8(), 2e-6));
}

template <typename F>
std::string ErrorOf(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The same line on every instruction set: what is wrong, layer, head,
/// position.
TEST(SinglePass, RefusesWhatIsNotFinite) {
  for (const Isa isa : BuiltIsas()) {
    if (!CpuHas(isa)) continue;
    TestHead query(40, 64, 2, 11);
    query.Query(1)[63] = std::numeric_limits<float>::infinity();
    TestHead scores(40, 64, 2, 12);
    for (float& x : scores.Query(0)) x = 3e38f;
    for (float& x : scores.Key(33)) x = 3e38f;
    const auto errors = [&](TestHead& head) {
      return std::vector<std::string>{ErrorOf([&] { Online(head, 1, isa); }),
                                      ErrorOf([&] { Online(head, 32, isa); }),
                                      ErrorOf([&] { Q8(head, 1, isa); }),
                                      ErrorOf([&] { Q8(head, 32, isa); }),
                                      ErrorOf([&] { Two(head, false, isa); }),
                                      ErrorOf([&] { Two(head, true, isa); })};
    };
    for (const std::string& error : errors(query)) {
      EXPECT_NE(error.find("the query is not finite (element 63"),
                std::string::npos)
          << error;
      EXPECT_NE(error.find("layer 1, head 3, position 39"), std::string::npos)
          << error;
    }
    for (const std::string& error : errors(scores)) {
      EXPECT_NE(error.find("the softmax total is"), std::string::npos) << error;
      EXPECT_NE(error.find("layer 1, head 2, position 39"), std::string::npos)
          << error;
    }
  }
}

/// Prefill on a q8 cache is two_pass at each position, bit for bit.
TEST(TwoPass, PrefillEqualsDecodeBitForBit) {
  for (const int d : {8, 64, 80, 128}) {
    constexpr int kTokens = 100, kGroup = 2;
    TestHead head(kTokens, d, kGroup, 13);
    const AttendInput all = head.Q8Input();
    TestHead queries(1, d, kGroup * kTokens, 14);
    const AttendInput rows = queries.Input();
    const int stride = QueryStride(d);
    TwoPass stage(PrimitivesFor(BestIsa()), false);
    for (const int first : {0, 31, 64}) {
      const PrefillInput input{
          .first_position = first,
          .count = kTokens - first,
          .group = kGroup,
          .queries = rows.queries.data() + first * kGroup * stride,
          .position_stride = kGroup * stride,
          .kv = all.kv};
      std::vector<float> out(std::size_t(kTokens - first) * kGroup * d);
      stage.Prefill(input, nullptr,
                    {.data = out.data(), .position_stride = kGroup * d});
      for (int p = first; p < kTokens; ++p) {
        const AttendInput one{.position = p,
                              .group = kGroup,
                              .queries = rows.queries.subspan(
                                  p * kGroup * stride, kGroup * stride),
                              .kv = all.kv.First(p + 1)};
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

}  // namespace
}  // namespace kvlab
