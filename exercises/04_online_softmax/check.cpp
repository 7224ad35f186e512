#include <limits>

#include "exercises/04_online_softmax/online_softmax.h"
#include "exercises/checker/attention_oracle.h"
#include "exercises/checker/code_check.h"
#include "exercises/checker/heap_peak.h"

namespace kvlab {
namespace {

constexpr const char* kLesson = "day09_kv_q8/README.md#the-stages";

/// Hands out rows from memory for one tile, and counts how often.
class CountingSource final : public TileSource {
 public:
  /// Behind the rows of a tile, and where it was when its time is over, there
  /// is no number; or, if asked for, zeros, or keys that would get all weight.
  enum class Beyond { kNaN, kZeros, kLargeScores };
  CountingSource(const HeadRows<float>& rows, int tile,
                 Beyond beyond = Beyond::kNaN)
      : rows_(rows),
        tile_(tile),
        beyond_(beyond),
        keys_(Size(32)),
        values_(Size(32)) {}

  bool Next(Tile& tile) override {
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      keys_[i] = beyond_ == Beyond::kNaN     ? kNone
                 : beyond_ == Beyond::kZeros ? 0
                                             : 100 * rows_.query[i % rows_.d];
      values_[i] = beyond_ == Beyond::kNaN ? kNone : 0;
    }
    const int tokens = std::min(tile_, rows_.tokens() - token_);
    if (tokens <= 0) return false;
    const auto first = static_cast<std::ptrdiff_t>(Size(token_));
    const auto size = static_cast<std::ptrdiff_t>(Size(tokens));
    const auto keys = rows_.keys.begin() + first;
    const auto values = rows_.values.begin() + first;
    std::copy(keys, keys + size, keys_.begin());
    std::copy(values, values + size, values_.begin());
    tile = {tokens, std::span(keys_).first(Size(tokens)),
            std::span(values_).first(Size(tokens))};
    token_ += tokens;
    ++tiles_given;
    return true;
  }
  void Rewind() override {
    token_ = 0;
    ++rewinds;
  }

  int rewinds = 0;
  int tiles_given = 0;

 private:
  std::size_t Size(int tokens) const {
    return static_cast<std::size_t>(tokens) * rows_.d;
  }

  const HeadRows<float>& rows_;
  int tile_;
  Beyond beyond_;
  int token_ = 0;
  std::vector<float> keys_, values_;
};

/// Runs the student's function and compares.
void ExpectAttention(const CodeCheck& check, const std::string& what,
                     const HeadRows<float>& rows, int tile,
                     const std::string& hint = "",
                     const std::string& nan_hint = "") {
  CountingSource source(rows, tile);
  const std::vector<float> out = Attend(rows.query, source);
  const ExactAttention exact = Exactly(rows);
  ExpectOutput(
      check, what, exact, out,
      CommonMistakes(Widened(rows), exact, TileSizes(rows.tokens(), tile)),
      hint, nan_hint);
}

/// What the function gives may not depend on what lies behind the rows of a
/// short tile.
void ExpectNothingBeyond(const CodeCheck& check, const std::string& what,
                         const HeadRows<float>& rows) {
  using Beyond = CountingSource::Beyond;
  const auto run = [&rows](Beyond beyond) {
    CountingSource source(rows, 32, beyond);
    return Attend(rows.query, source);
  };
  const auto same = [](float a, float b) {
    return a == b || (std::isnan(a) && std::isnan(b));
  };
  const std::vector<float> out = run(Beyond::kNaN);
  // A NaN can get lost in a comparison, and a large score gives a NaN as well.
  const bool all_same =
      std::ranges::equal(out, run(Beyond::kZeros), same) &&
      std::ranges::equal(out, run(Beyond::kLargeScores), same);
  check.Expect(
      all_same,
      StrCat(what,
             ": rows beyond tile.tokens were read: out changes with what lies "
             "there; tile.tokens of the last tile: ",
             (rows.tokens() - 1) % 32 + 1));
}

/// The largest output for values that are all 1, whose mean is 1 whatever the
/// weights, while M grows in every tile; and how far from 1 it may be.
struct OnesOutput {
  float found = 0;
  double tolerance = 0;
};
OnesOutput AttendToOnes(RandomNumbers& random) {
  HeadRows<float> rows = RowsWithScores(random, 64, Steps(96, -3, 3));
  for (float& x : rows.values) x = 1;
  CountingSource source(rows, 32);
  const std::vector<float> out = Attend(rows.query, source);
  return {out.empty() ? std::nanf("") : out[0], Exactly(rows).tolerance[0]};
}

void Tests(CodeCheck& check) {
  const auto test = [&check](const char* name, const auto& body) {
    RandomTest(check, name, kLesson, body);
  };

  test("one_look", [&](RandomNumbers& random) {
    const HeadRows<float> rows =
        RowsWithScores(random, 64, ScoresAround(random, 100, 0));
    CountingSource source(rows, 32);
    Attend(rows.query, source);
    check.Expect(
        source.rewinds == 0 && source.tiles_given == 4,
        StrCat("100 tokens come in 4 tiles; your function asked for ",
               source.tiles_given, " tiles and began again ", source.rewinds,
               " time(s). A tile is seen once: what it is needed for must "
               "be done when it comes"));
  });

  test("memory", [&](RandomNumbers& random) {
    const auto peak = [&random](int n) {
      const HeadRows<float> rows =
          RowsWithScores(random, 16, ScoresAround(random, n, 0));
      CountingSource source(rows, 32);
      const HeapPeak heap;
      Attend(rows.query, source);
      return heap.bytes();
    };
    const std::int64_t few = peak(64), many = peak(4096);
    check.Expect(many <= few,
                 StrCat("bytes allocated at once: ", few,
                        " for 64 tokens, but ", many, " for 4,096, which is ",
                        static_cast<double>(many - few) / (4096 - 64),
                        " more for each token; nothing may be kept per token"));
  });

  test("one_tile", [&](RandomNumbers& random) {
    ExpectAttention(
        check, "one tile of 32 tokens",
        RowsWithScores(random, 64, ScoresAround(random, 32, 0)), 32,
        "nothing is rescaled here: look at the weights, at acc, and "
        "at whether the only tile was taken");
  });

  test("first_tile", [&](RandomNumbers& random) {
    ExpectAttention(
        check, "one tile of 32 scores near -200",
        RowsWithScores(random, 64, ScoresAround(random, 32, -200)), 32, "",
        "exp(-200) is 0 in a float: the first tile sets M, even to less than "
        "what M was declared with");
  });

  test("descending", [&](RandomNumbers& random) {
    ExpectAttention(check, "160 tokens, scores descending",
                    RowsWithScores(random, 64, Steps(160, 4, -1)), 32,
                    "M never grows here, so nothing is to be rescaled: the "
                    "later tiles are weighted with the M of the first");
    std::vector<double> scores = ScoresAround(random, 96, -60);
    for (int t = 0; t < 32; ++t) scores[static_cast<std::size_t>(t)] += 120;
    ExpectAttention(check, "the first of 3 tiles is 120 above the others",
                    RowsWithScores(random, 64, scores), 32, "",
                    "exp(120) is infinity in a float: M may not fall to "
                    "the largest score of a later tile");
  });

  test("last_tile", [&](RandomNumbers& random) {
    for (const int n : {1, 31, 33, 63, 127, 129, 1000}) {
      const int last = (n - 1) % 32 + 1;
      const HeadRows<float> rows = RowsWithScores(random, 64, Steps(n, 0.5, 0));
      ExpectNothingBeyond(check, StrCat("n = ", n), rows);
      ExpectAttention(check, StrCat("n = ", n), rows, 32,
                      StrCat("tokens in the last tile: ", last,
                             "; were they all taken, and no others?"),
                      "was the only tile, of fewer than 32 tokens, taken?");
    }
    ExpectAttention(check, "one tile of 20 scores near -200",
                    RowsWithScores(random, 64, ScoresAround(random, 20, -200)),
                    32, "",
                    "exp(-200) is 0 in a float: was the largest score looked "
                    "for among 32, where the tile has only tile.tokens?");
  });

  test("acc_rescaled", [&](RandomNumbers& random) {
    const OnesOutput ones = AttendToOnes(random);
    check.Expect(
        !(ones.found > 1 + ones.tolerance),
        StrCat("all values are 1, so out[0] must be 1; found ", ones.found,
               ": acc is ", ones.found,
               " times too large for S; was it rescaled when M grew?"));
  });

  test("S_rescaled", [&](RandomNumbers& random) {
    const OnesOutput ones = AttendToOnes(random);
    check.Expect(ones.found >= 1 - ones.tolerance,
                 StrCat("all values are 1, so out[0] must be 1; found ",
                        ones.found, ": S is ", 1 / ones.found,
                        " times too large for acc; was it rescaled when M "
                        "grew?"));
  });

  test("ascending", [&](RandomNumbers& random) {
    const HeadRows<float> rows = RowsWithScores(random, 64, Steps(200, -5, 5));
    ExpectAttention(check, "200 tokens, every tile rescales", rows, 32);
    ExpectAttention(check, "200 tiles of one token, every one rescales", rows,
                    1);
  });

  test("late_maximum", [&](RandomNumbers& random) {
    for (const int late : {70, 128}) {
      std::vector<double> scores = ScoresAround(random, 129, 0);
      scores[static_cast<std::size_t>(late)] = 40;
      HeadRows<float> rows = RowsWithScores(random, 64, scores);
      // exp(-40) times a thousand is still nothing beside the late value.
      for (int i = 0; i < 32 * 64; ++i) rows.values[i] *= 1000;
      ExpectAttention(check, StrCat("token ", late, " of 129 takes all weight"),
                      rows, 32);
    }
  });

  test("equal_scores", [&](RandomNumbers& random) {
    HeadRows<float> rows =
        RowsWithScores(random, 64, ScoresAround(random, 129, 0));
    std::fill(rows.keys.begin(), rows.keys.end(), 0.0f);
    ExpectAttention(check, "129 scores of 0: out is the mean of the values",
                    rows, 32);
  });

  test("huge_scores", [&](RandomNumbers& random) {
    ExpectAttention(check, "100 scores near 300",
                    RowsWithScores(random, 64, ScoresAround(random, 100, 300)),
                    32, "",
                    "exp(300) is infinity in a float: exp sees only "
                    "differences to M, which are at most 0");
  });

  test("every_length", [&](RandomNumbers& random) {
    for (const int n : {1, 31, 32, 33, 63, 64, 127, 128, 129, 1000}) {
      for (const int d : {64, 80}) {
        ExpectAttention(check, StrCat("n = ", n, ", d = ", d),
                        RowsWithScores(random, d, ScoresAround(random, n, 0)),
                        32);
      }
    }
  });
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  return kvlab::CodeCheckMain(argc, argv, kvlab::Tests);
}
