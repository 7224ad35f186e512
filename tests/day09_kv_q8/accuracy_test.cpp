/// The accuracy lab: its figures, its bound, and that a broken quantiser would
/// be seen.
#include "day09_kv_q8/accuracy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/error.h"
#include "common/engine/kv_cache.h"
#include "day09_kv_q8/accuracy_inputs.h"
#include "day09_kv_q8/accuracy_report.h"
#include "day09_kv_q8/q8_single_pass.h"
#include "day09_kv_q8/three_pass.h"
#include "tests/support/compare.h"
#include "tests/support/kv.h"

namespace kvlab {
namespace {

const Primitives& Best() { return PrimitivesFor(BestIsa()); }

QueryOutcome Measure(const AccuracyInput& input,
                     const Primitives& primitives = Best()) {
  const KvHeadView kv = input.kv();
  return AccuracyHead(primitives, kv).Measure(input.query());
}

/// Errors of a kind of input over several draws.
AccuracyErrors Errors(InputKind kind, int n, int head_dim, int draws) {
  GaussianSource source(1);
  AccuracyErrors errors;
  for (int i = 0; i < draws; ++i) {
    errors.Add(Measure(AccuracyInput(n, head_dim, source).As(kind)));
  }
  return errors;
}

double RelativeL2(const AccuracyErrors& errors, ScaleForm form, Arm arm) {
  return errors.At(form, arm).output().relative_l2();
}

// --- The figures of the lesson -----------------------------------------------

/// Rounding to the nearest has a standard deviation of s / sqrt(12) an element.
/// Of a key it moves a score (|q|^2 = d) by as much, and the output, a mean of
/// independent values with weights that are each wrong by that share, relative
/// to its length by the same share: s_K / sqrt(12). The largest of 128 normal
/// deviates is 2.8 on average, of 32 it is 2.2; so s_K is 0.022 per row and
/// 0.017 per 32 (0.64 and 0.5 %), V costs the same, q 0.5 %: together 1.0 and
/// 0.9 %. Channels of 10 and 50 sigma make s_K 0.079 and 0.39 (2.3 and 11.4 %),
/// per 32 in half of the elements (times sqrt(1/2)). The ranges are 20 % about
/// these, since a draw's |q| varies by 6 % and its output by more.
TEST(Accuracy, FiguresOfTheLesson) {
  const auto errors = [](InputKind kind) { return Errors(kind, 1024, 128, 8); };
  const auto expect_all = [](const AccuracyErrors& e, double per_row,
                             double per_32) {
    const double row = RelativeL2(e, ScaleForm::kPerRow, Arm::kAll);
    const double group = RelativeL2(e, ScaleForm::kPer32, Arm::kAll);
    EXPECT_GT(row, 0.8 * per_row);
    EXPECT_LT(row, 1.2 * per_row);
    EXPECT_GT(group, 0.8 * per_32);
    EXPECT_LT(group, 1.2 * per_32);
    EXPECT_EQ(e.violations(), 0);
  };
  const AccuracyErrors gaussian = errors(InputKind::kGaussian);
  expect_all(gaussian, 0.0105, 0.0090);
  const AccuracyErrors outlier_10 = errors(InputKind::kOutlier10);
  expect_all(outlier_10, 0.0245, 0.0180);
  const AccuracyErrors outlier_50 = errors(InputKind::kOutlier50);
  expect_all(outlier_50, 0.114, 0.080);

  // A standard error of a channel's sigma is 1 / sqrt(2 * 1024) = 2.2 %; the
  // largest of 128 is within four of them.
  EXPECT_NEAR(gaussian.key_peak(), 1, 0.1);
  EXPECT_NEAR(outlier_10.key_peak(), 10, 0.1);
  EXPECT_NEAR(outlier_50.key_peak(), 50, 0.5);
  EXPECT_EQ(Errors(InputKind::kZeroKeys, 8, 16, 1).key_peak(), 0);

  for (const ScaleForm form : kScaleForms) {
    // One arm alone costs less than all, and independent errors add as squares:
    // to 25 %, since 8 queries are few.
    double squares = 0;
    for (const Arm arm : {Arm::kKeys, Arm::kValues, Arm::kQuery}) {
      const double error = RelativeL2(gaussian, form, arm);
      EXPECT_LT(error, RelativeL2(gaussian, form, Arm::kAll)) << ArmName(arm);
      squares += error * error;
    }
    const double all = RelativeL2(gaussian, form, Arm::kAll);
    EXPECT_NEAR(std::sqrt(squares), all, 0.25 * all);
    // Outliers are in the keys: V costs what it did, q nearly so (the two
    // channels of its query do not matter to the weights).
    EXPECT_NEAR(RelativeL2(outlier_50, form, Arm::kValues),
                RelativeL2(gaussian, form, Arm::kValues), 1e-3);
    EXPECT_NEAR(RelativeL2(outlier_50, form, Arm::kQuery),
                RelativeL2(gaussian, form, Arm::kQuery), 2e-3);
    // Rounding V moves no weight.
    EXPECT_EQ(gaussian.At(form, Arm::kValues).largest_total_variation(), 0);
    // A score error e changes a weight by the share e, and the mean of |e| / 2
    // is sqrt(2 / pi) / 2 of its standard deviation.
    for (const AccuracyErrors* e : {&gaussian, &outlier_10, &outlier_50}) {
      const double moved = 0.4 * std::hypot(RelativeL2(*e, form, Arm::kKeys),
                                            RelativeL2(*e, form, Arm::kQuery));
      EXPECT_NEAR(e->At(form, Arm::kAll).mean_total_variation(), moved,
                  0.2 * moved);
    }
    EXPECT_LT(outlier_50.At(form, Arm::kAll).mean_cosine(), 0.998);
    EXPECT_GT(gaussian.At(form, Arm::kAll).mean_cosine(), 0.9998);
  }
}

/// The weight of the sink is the one its input promises, and so a wrong score
/// of it costs little: the error is that of the one value.
TEST(Accuracy, ASinkTakesMostOfTheWeight) {
  GaussianSource source(1);
  const AccuracyInput drawn(1024, 128, source);
  const QueryOutcome outcome = Measure(drawn.As(InputKind::kSink));
  const KvHeadView kv = drawn.kv();
  double dot = 0, square = 0;
  for (int i = 0; i < 128; ++i) {
    dot += outcome.exact[i] * kv.Value(0)[i];
    square += double{kv.Value(0)[i]} * kv.Value(0)[i];
  }
  EXPECT_NEAR(dot / square, 0.92, 0.02);
  const AccuracyErrors e = Errors(InputKind::kSink, 1024, 128, 4);
  const double all = RelativeL2(e, ScaleForm::kPerRow, Arm::kAll);
  EXPECT_LT(RelativeL2(e, ScaleForm::kPerRow, Arm::kKeys), 0.2 * all);
  EXPECT_GT(RelativeL2(e, ScaleForm::kPerRow, Arm::kValues), 0.9 * all);
}

/// What 0 / 0 is: no error, and two zero vectors point the same way.
TEST(Accuracy, ZerosAreFiniteAndExact) {
  for (const InputKind kind : {InputKind::kZeroKeys, InputKind::kZeroQuery,
                               InputKind::kZeroValues, InputKind::kZeroAll}) {
    const AccuracyErrors e = Errors(kind, 64, 40, 1);
    const bool zero_output =
        kind == InputKind::kZeroValues || kind == InputKind::kZeroAll;
    const bool exact_scores = kind != InputKind::kZeroValues;
    for (const ScaleForm form : kScaleForms) {
      for (const Arm arm : kArms) {
        const ArmErrors& a = e.At(form, arm);
        SCOPED_TRACE(StrCat(InputKindName(kind), ", ", ScaleFormName(form),
                            ", ", ArmName(arm)));
        const bool exact = zero_output || arm == Arm::kKeys ||
                           arm == Arm::kQuery;  // equal weights stay equal
        EXPECT_EQ(a.output().relative_l2() == 0, exact);
        EXPECT_TRUE(std::isfinite(a.output().relative_l2()));
        EXPECT_EQ(a.output().max_abs() == 0, exact);
        EXPECT_GT(a.mean_cosine(), 0.9999);
        EXPECT_LE(a.mean_cosine(), 1);
        EXPECT_EQ(a.scores().violations, 0);
        if (exact_scores) {
          EXPECT_EQ(a.scores().largest, 0);
          EXPECT_EQ(a.scores().worst_ratio, 0);
          EXPECT_EQ(a.largest_total_variation(), 0);
        }
      }
    }
  }
}

/// A long output does not count more than a short one.
TEST(Accuracy, EveryQueryCountsTheSame) {
  OutputErrors errors;
  errors.Add(std::vector<double>{3, 4.5}, std::vector<double>{3, 4});
  errors.Add(std::vector<double>{3000, 4000}, std::vector<double>{3000, 4000});
  EXPECT_NEAR(errors.relative_l2(), 0.1 / std::sqrt(2.0), 1e-12);
  EXPECT_EQ(errors.max_abs(), 0.5);
}

TEST(Accuracy, CosineOfZeroVectors) {
  const std::vector<double> zero(4), one(4, 1.0);
  const auto cosine = [](const std::vector<double>& exact,
                         const std::vector<double>& out) {
    ArmErrors errors;
    errors.Add(exact, {.out = out, .total_variation = 0, .scores = {}});
    return errors.mean_cosine();
  };
  EXPECT_EQ(cosine(zero, zero), 1);
  EXPECT_EQ(cosine(zero, one), 0);
  EXPECT_EQ(cosine(one, zero), 0);
  EXPECT_EQ(cosine(one, one), 1);
  EXPECT_NEAR(cosine(one, {-1, -1, -1, -1}), -1, 1e-15);
}

// --- The real stages ---------------------------------------------------------

/// What the arm "all, per row" says is what the stage over a cache does. Apart
/// from rounding in float: the tolerance is the stages' own (see
/// single_pass_test.cpp), 20 times as large where scores are, with a sink or
/// outliers, 10 times as large.
void ExpectTheStages(const AccuracyInput& input, double tolerance) {
  const KvHeadView f32 = input.kv();
  const int n = f32.tokens, d = f32.head_dim;
  KvCache cache({.format = KvFormat::kQ8,
                 .layers = 1,
                 .kv_heads = 1,
                 .head_dim = d,
                 .capacity = n},
                Best());
  for (int t = 0; t < n; ++t) {
    const auto row = static_cast<std::size_t>(d);
    cache.Append(0, {f32.Key(t), row}, {f32.Value(t), row}, 1);
  }
  std::vector<float> query(static_cast<std::size_t>(QueryStride(d)));
  std::ranges::copy(input.query(), query.begin());
  const auto attend = [&](AttentionStage&& stage, const KvHeadView& kv) {
    std::vector<float> out(static_cast<std::size_t>(d));
    stage.Attend({.position = n - 1, .queries = query, .kv = kv}, out, nullptr);
    return out;
  };
  const QueryOutcome outcome = Measure(input);
  EXPECT_TRUE(WithinRelativeMax<double>(attend(ThreePass(Best()), f32),
                                        outcome.exact, tolerance));
  for (const int tile : {1, 32}) {
    EXPECT_TRUE(WithinRelativeMax<double>(
        attend(Q8SinglePass(Best(), tile), cache.View(0, 0)),
        outcome.arms.At(ScaleForm::kPerRow, Arm::kAll).out, tolerance))
        << "tile " << tile;
  }
}

TEST(Accuracy, TheArmWithEverythingRoundedIsTheStage) {
  for (const int d : {8, 40, 80, 128}) {
    for (const int n : {1, 31, 33, 300}) {
      SCOPED_TRACE(StrCat("n ", n, ", d ", d));
      GaussianSource source(static_cast<std::uint64_t>(n));
      const AccuracyInput drawn(n, d, source);
      ExpectTheStages(drawn, 2e-6);
      ExpectTheStages(drawn.As(InputKind::kZeroKeys), 2e-6);
      ExpectTheStages(drawn.As(InputKind::kZeroQuery), 2e-6);
      ExpectTheStages(drawn.As(InputKind::kSink), 4e-5);
      ExpectTheStages(drawn.As(InputKind::kOutlier50), 4e-5);
    }
  }
}

/// At d = 32 a row is one group, so both forms are the same numbers.
TEST(Accuracy, FormsAgreeWhereARowIsOneGroup) {
  GaussianSource source(3);
  const QueryOutcome outcome = Measure(AccuracyInput(50, 32, source));
  for (const Arm arm : kArms) {
    const ArmOutcome& a = outcome.arms.At(ScaleForm::kPerRow, arm);
    const ArmOutcome& b = outcome.arms.At(ScaleForm::kPer32, arm);
    EXPECT_EQ(a.out, b.out) << ArmName(arm);
    EXPECT_EQ(a.scores.largest, b.scores.largest);
  }
}

// --- The bound ---------------------------------------------------------------

TEST(AccuracyBound, HoldsOnEveryShapeAndKind) {
  for (const int d : {1, 8, 33, 80, 128, 256}) {
    for (const int n : {1, 31, 100}) {
      for (const InputKind kind : kInputKinds) {
        EXPECT_EQ(Errors(kind, n, d, 1).violations(), 0)
            << InputKindName(kind) << ", n " << n << ", d " << d;
      }
    }
  }
}

/// Down to rows whose scale is no normal float, or zero where the row is not.
TEST(AccuracyBound, HoldsForTinyAndHugeNumbers) {
  for (const float size :
       {0x1p-149f, 1e-44f, 1e-42f, 1e-40f, 1e-38f, 1e-36f, 1e-30f, 1e15f}) {
    TestHead head(40, 64, 1, 5);
    for (int t = 0; t < 40; t += 2) {
      for (float& x : head.Key(t)) x *= size;
      for (float& x : head.Value(t)) x *= size;
    }
    const AttendInput input = head.Input();
    const QueryOutcome outcome =
        AccuracyHead(Best(), input.kv).Measure(head.Query(0));
    AccuracyErrors errors;
    errors.Add(outcome);
    EXPECT_EQ(errors.violations(), 0) << size;
    for (const double x : outcome.exact) EXPECT_TRUE(std::isfinite(x));
  }
}

/// Keys whose every element lies nearly half a step from its code, on the side
/// of the query's sign: their error comes within 1 % of the bound, so the bound
/// cannot be made smaller.
AttendInput WorstKeys(TestHead& head) {
  for (int t = 0; t < 40; ++t) {
    for (int i = 0; i < 64; ++i) {
      const float code = static_cast<float>((7 * t + 5 * i) % 120);
      head.Key(t)[i] =
          (code + 0.499f) * 0x1p-7f * (head.Query(0)[i] < 0 ? -1.0f : 1.0f);
    }
    head.Key(t)[t] = 127 * 0x1p-7f;  // so the scale is 2^-7
  }
  return head.Input();
}

TEST(AccuracyBound, IsReached) {
  TestHead head(40, 64, 1, 6);
  const AttendInput input = WorstKeys(head);
  const QueryOutcome outcome =
      AccuracyHead(Best(), input.kv).Measure(head.Query(0));
  const ScoreErrors& keys =
      outcome.arms.At(ScaleForm::kPerRow, Arm::kKeys).scores;
  EXPECT_GT(keys.worst_ratio, 0.95);
  EXPECT_LE(keys.worst_ratio, 1);
  EXPECT_EQ(keys.violations, 0);
  EXPECT_EQ(keys.scores, 40);
}

/// The same for the query: keys that are codes, and a query that lies nearly
/// half a step from its codes but for the largest element of each group. Then
/// the bound of the keys is small, and all of the other is needed.
TEST(AccuracyBound, IsReachedByTheQuery) {
  TestHead head(3, 64, 1, 6);
  for (int t = 0; t < 3; ++t) {
    for (float& x : head.Key(t)) x = 127 * 0x1p-7f;
  }
  for (int i = 0; i < 64; ++i) {
    head.Query(0)[i] = (i % 32 == 0 ? 127.0f : 0.499f) * 0x1p-7f;
  }
  const AttendInput input = head.Input();
  const QueryOutcome outcome =
      AccuracyHead(Best(), input.kv).Measure(head.Query(0));
  for (const ScaleForm form : kScaleForms) {
    for (const Arm arm : {Arm::kAll, Arm::kQuery}) {
      const ScoreErrors& scores = outcome.arms.At(form, arm).scores;
      EXPECT_GT(scores.worst_ratio, 0.9) << ArmName(arm);
      EXPECT_EQ(scores.violations, 0) << ArmName(arm);
    }
  }
}

/// Quantisers that are wrong in ways that happen, in the place of the real one:
/// the bound tells each.
float Halved(const float* x, int n, std::int8_t* codes) {
  return Best().quantise(x, n, codes) / 2;
}
float Truncating(const float* x, int n, std::int8_t* codes) {
  const float scale = Best().quantise(x, n, codes);
  for (int i = 0; i < n; ++i) codes[i] = static_cast<std::int8_t>(x[i] / scale);
  return scale;
}
float LosesTheLast(const float* x, int n, std::int8_t* codes) {
  const float scale = Best().quantise(x, n, codes);
  codes[n - 1] = 0;
  return scale;
}

TEST(AccuracyBound, ShowsABrokenQuantiser) {
  const auto violations = [](const AttendInput& input, TestHead& head,
                             auto quantise) {
    Primitives primitives = Best();
    if (quantise != nullptr) primitives.quantise = quantise;
    AccuracyReport report;
    report.inputs.push_back({"broken", {}});
    report.inputs[0].errors.Add(
        AccuracyHead(primitives, input.kv).Measure(head.Query(0)));
    EXPECT_EQ(report.scores().violations, report.inputs[0].errors.violations());
    if (report.scores().violations == 0) {
      EXPECT_NO_THROW(RequireWithinBounds(report));
    } else {
      try {
        RequireWithinBounds(report);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), kExitFailed);
        EXPECT_NE(std::string(error.what()).find("beyond their bound"),
                  std::string::npos);
      }
    }
    return report.scores().violations;
  };
  using Quantiser = float (*)(const float*, int, std::int8_t*);
  TestHead random(40, 64, 1, 7);
  const AttendInput input = random.Input();
  EXPECT_EQ(violations(input, random, Quantiser{nullptr}), 0);
  EXPECT_GT(violations(input, random, Quantiser{Halved}), 0);
  TestHead last(40, 64, 1, 7);
  last.Query(0)[63] = 9;
  EXPECT_EQ(violations(last.Input(), last, Quantiser{nullptr}), 0);
  EXPECT_GT(violations(last.Input(), last, Quantiser{LosesTheLast}), 0);
  // Rows that lie more than half a step beyond a code.
  TestHead worst(40, 64, 1, 6);
  WorstKeys(worst);
  for (int t = 0; t < 40; ++t) {
    for (float& x : worst.Key(t)) x += (x < 0 ? -0.4f : 0.4f) * 0x1p-7f;
    worst.Key(t)[t] = 127 * 0x1p-7f;
  }
  EXPECT_EQ(violations(worst.Input(), worst, Quantiser{nullptr}), 0);
  EXPECT_GT(violations(worst.Input(), worst, Quantiser{Truncating}), 0);
}

TEST(AccuracyBound, NaNIsAViolation) {
  ScoreErrors errors;
  errors.Add(std::numeric_limits<double>::quiet_NaN(), 1);
  EXPECT_EQ(errors.violations, 1);
  errors.Add(-2, 1);
  errors.Add(-1, 1);
  EXPECT_EQ(errors.violations, 2);
  EXPECT_EQ(errors.largest, 2);
  EXPECT_EQ(errors.worst_ratio, 2);
}

// --- Logits ------------------------------------------------------------------

TEST(LogitErrors, KnownDivergence) {
  LogitErrors errors;
  // p = (1/2, 1/2) from q = (1/4, 3/4); what is added to all logits divides
  // out: ln(2) / 2 + ln(2/3) / 2.
  const std::vector<float> p = {100, 100};
  const std::vector<float> q = {-50, -50 + std::log(3.0f)};
  errors.Add(p, q);
  const double expected = 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3.0);
  EXPECT_NEAR(errors.mean_kl(), expected, 1e-6);  // ln 3 as a float
  EXPECT_EQ(errors.same_top(), 0);                // of equals the first
  EXPECT_EQ(errors.largest_lead_lost(), 0);       // they were equal
  errors.Add(q, q);
  EXPECT_EQ(errors.same_top(), 1);
  EXPECT_EQ(errors.positions(), 2);
  EXPECT_NEAR(errors.mean_kl(), expected / 2, 1e-6);
  EXPECT_NEAR(errors.largest_kl(), expected, 1e-6);
  errors.Add(q, p);
  EXPECT_EQ(errors.same_top(), 1);
  EXPECT_NEAR(errors.largest_lead_lost(), 0.5, 1e-6);  // 3/4 - 1/4
  // A probability that underflows is no NaN.
  LogitErrors far;
  far.Add(std::vector<float>{1000, -1000}, std::vector<float>{1000, -900});
  EXPECT_EQ(far.mean_kl(), 0);
}

// --- Same bits everywhere ----------------------------------------------------

TEST(GaussianSource, IsNormalAndPinned) {
  GaussianSource source(1);
  double sum[5] = {};
  constexpr int kCount = 100'000;
  std::vector<float> first;
  for (int i = 0; i < kCount; ++i) {
    const double x = source.Next();
    if (i < 4) first.push_back(static_cast<float>(x));
    double power = 1;
    for (double& s : sum) {
      s += power;
      power *= x;
    }
  }
  // Standard errors of the moments: sqrt(1, 2, 15, 96 / 100,000); four of them.
  EXPECT_NEAR(sum[1] / kCount, 0, 0.013);
  EXPECT_NEAR(sum[2] / kCount, 1, 0.018);
  EXPECT_NEAR(sum[3] / kCount, 0, 0.049);
  EXPECT_NEAR(sum[4] / kCount, 3, 0.124);
  EXPECT_TRUE(
      SameBits(first, std::vector<float>{0x1.50170ap+0f, 0x1.841512p+0f,
                                         0x1.402794p+0f, 0x1.5451aap-3f}));
}

TEST(Accuracy, SameBitsOnEveryInstructionSet) {
  GaussianSource source(2);
  const AccuracyInput input = AccuracyInput(70, 80, source);
  const QueryOutcome scalar = Measure(input, PrimitivesFor(Isa::kScalar));
  for (const Isa isa : BuiltIsas()) {
    if (!CpuHas(isa)) continue;
    const QueryOutcome other = Measure(input, PrimitivesFor(isa));
    EXPECT_EQ(other.exact, scalar.exact);
    for (const ScaleForm form : kScaleForms) {
      for (const Arm arm : kArms) {
        EXPECT_EQ(other.arms.At(form, arm).out, scalar.arms.At(form, arm).out)
            << IsaName(isa);
      }
    }
  }
  // And on every machine.
  EXPECT_EQ(scalar.exact[0], 0x1.bf4fbf4ba151fp-3);
  EXPECT_EQ(scalar.arms.At(ScaleForm::kPer32, Arm::kAll).out[79],
            -0x1.b586f54de3643p-6);
}

}  // namespace
}  // namespace kvlab
