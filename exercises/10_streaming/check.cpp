#include <array>
#include <limits>
#include <numeric>
#include <sstream>

#include "exercises/10_streaming/streaming.h"
#include "exercises/checker/attention_oracle.h"
#include "exercises/checker/code_check.h"
#include "exercises/checker/heap_peak.h"

namespace kvlab {
namespace {

constexpr const char* kArriving =
    "day09_kv_q8/README.md#keys-and-values-that-arrive";
constexpr const char* kStages = "day09_kv_q8/README.md#the-stages";
constexpr double kU = 0x1p-24;  // one rounding of a float, relative

/// Rows in chunks of given sizes, from memory for one chunk.
class ChunkedRows final : public ChunkSource {
 public:
  ChunkedRows(const HeadRows<float>& rows, std::vector<int> sizes)
      : rows_(rows), sizes_(std::move(sizes)) {
    const std::size_t size = 32 * static_cast<std::size_t>(rows.d);
    keys_.resize(size);
    values_.resize(size);
  }

  std::optional<Chunk> Next() override {
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    std::fill(keys_.begin(), keys_.end(), kNone);
    std::fill(values_.begin(), values_.end(), kNone);
    if (chunk_ == sizes_.size()) return std::nullopt;
    const int tokens = sizes_[chunk_++];
    const int d = rows_.d;
    const auto size = static_cast<std::size_t>(tokens) * d;
    std::copy_n(rows_.keys.begin() + token_ * d, size, keys_.begin());
    std::copy_n(rows_.values.begin() + token_ * d, size, values_.begin());
    token_ += tokens;
    return Chunk{tokens, std::span(keys_).first(size),
                 std::span(values_).first(size)};
  }

 private:
  const HeadRows<float>& rows_;
  std::vector<int> sizes_;
  std::size_t chunk_ = 0;
  int token_ = 0;
  std::vector<float> keys_, values_;
};

/// Sizes of chunks of 1 to 32 tokens, n together.
std::vector<int> DrawnSizes(RandomNumbers& random, int n) {
  std::vector<int> sizes;
  for (int rest = n; rest > 0; rest -= sizes.back()) {
    sizes.push_back(std::min(rest, random.Between(1, 32)));
  }
  return sizes;
}

SoftmaxPart Read(const HeadRows<float>& rows, const std::vector<int>& sizes) {
  ChunkedRows source(rows, sizes);
  return ReadStream(rows.query, source);
}

/// Reads the rows in these chunks and compares the output.
void ExpectStream(const CodeCheck& check, const std::string& what,
                  const HeadRows<float>& rows, const std::vector<int>& sizes,
                  const std::string& nan_hint = "") {
  const ExactAttention exact = Exactly(rows);
  std::vector<Otherwise> known = CommonMistakes(Widened(rows), exact, sizes);
  const auto alone = [&](int first, int last) {
    const HeadRows<double> rows_alone = Widened(Part(rows, first, last));
    const auto scores = std::span(exact.scores).subspan(first, last - first);
    return OnlineWith({}, rows_alone, scores, std::array{last - first});
  };
  const int n = rows.tokens();
  known.push_back(
      {"this is the result of the first chunk alone", alone(0, sizes.front())});
  known.push_back({"this is the result of the last chunk alone",
                   alone(n - sizes.back(), n)});
  const SoftmaxPart part = Read(rows, sizes);
  check.Expect(
      part.S != 0,
      StrCat(
          what,
          ": S of the part is 0: either no chunk was used, or exp underflowed "
          "for every token, as it does where M is no score"));
  ExpectOutput(check, StrCat(what, ", chunks: ", sizes.size()), exact,
               Output(part), known, "", nan_hint);
}

/// CodeCheck::ExpectNear for a number that is none of many.
void ExpectNumber(const CodeCheck& check, const std::string& what,
                  double expected, double found, double tolerance) {
  std::ostringstream text;
  text.precision(9);
  text << what << ": expected " << expected << " within " << tolerance
       << ", found " << found;
  check.Expect(std::abs(found - expected) <= tolerance, text.str());
}

/// S and acc of a part against double, for the M that it has: any M gives the
/// same output, and this one may be off as far as a float score.
void ExpectPart(const CodeCheck& check, const HeadRows<float>& rows,
                const SoftmaxPart& part) {
  const ExactAttention exact = Exactly(rows);
  check.ExpectEqual("numbers in acc", rows.query.size(), part.acc.size());
  WithReason("M is the largest score", [&] {
    ExpectNumber(check, "M", exact.M, part.M, exact.score_error);
  });
  const double factor = ExpDouble(exact.M - part.M);
  double S = 0;
  std::vector<double> acc(rows.query.size(), 0), magnitude(acc);
  for (std::size_t t = 0; t < exact.weights.size(); ++t) {
    const double w = exact.weights[t] * factor;
    S += w;
    for (std::size_t i = 0; i < acc.size(); ++i) {
      const double x = w * rows.values[t * acc.size() + i];
      acc[i] += x;
      magnitude[i] += std::abs(x);
    }
  }
  ExpectNumber(check, "S", S, part.S, S * exact.weight_error);
  for (std::size_t i = 0; i < acc.size(); ++i) {
    WithReason(std::abs(part.acc[i] - acc[i] / S) < 1e-4
                   ? "it is divided by S, but a part is not: its output is"
                   : "",
               [&] {
                 check.ExpectNear("acc", static_cast<std::int64_t>(i), acc[i],
                                  part.acc[i],
                                  magnitude[i] * exact.weight_error);
               });
  }
}

/// A part with this M.
SoftmaxPart DrawnPart(RandomNumbers& random, float M) {
  SoftmaxPart part{M, 1 + std::abs(random.Next()), Drawn(random, 8)};
  return part;
}

SoftmaxPart NoTokens(int d) {
  return {0, 0, std::vector<float>(static_cast<std::size_t>(d), 0.0f)};
}

/// Merge(a, b) against double. A factor exp(M - M_new) is off by its rounded
/// argument, |M - M_new| u, and 2u of Exp; then a product and an addition: u
/// each.
void ExpectMerged(const CodeCheck& check, const std::string& what,
                  const SoftmaxPart& a, const SoftmaxPart& b) {
  const SoftmaxPart found = Merge(a, b);
  const double M = std::max(a.M, b.M);
  WithReason("the larger of the two", [&] {
    check.ExpectEqual(what + ": M", std::max(a.M, b.M), found.M);
  });
  const double ca = ExpDouble(a.M - M), cb = ExpDouble(b.M - M);
  const double error =
      (std::abs(double{a.M} - b.M) + 4) * kU * 1.1;  // relative to each term

  const auto expect = [&](const std::string& name, double x, double y,
                          double value) {
    const struct {
      double value;
      const char* reason;
    } others[] = {
        {x + y,
         "the two were added as they are, but they stand under "
         "different M: bring both to the new one first"},
        {x, "this is a alone"},
        {y, "this is b alone"},
        {x / ca + cb * y, "the factor of a is upside down: exp(M_old - M_new)"},
        {ca * x + y / cb, "the factor of b is upside down: exp(M_old - M_new)"},
        {cb * x + ca * y, "the factors of a and b are exchanged"}};
    const double expected = ca * x + cb * y;
    const double tolerance =
        error * (ca * std::abs(x) + cb * std::abs(y)) + 0x1p-126;
    std::string reason;
    for (const auto& other : others) {
      if (reason.empty() &&
          std::abs(value - other.value) <= 1e-5 * std::abs(other.value)) {
        reason = other.reason;
      }
    }
    WithReason(reason, [&] {
      ExpectNumber(check, what + name, expected, value, tolerance);
    });
  };
  expect(": S", a.S, b.S, found.S);
  check.ExpectEqual(what + ": numbers in acc", a.acc.size(), found.acc.size());
  for (std::size_t i = 0; i < a.acc.size(); ++i) {
    expect(StrCat(": acc[", i, "]"), a.acc[i], b.acc[i], found.acc[i]);
  }
}

/// Merge with a part of no tokens must give the other.
void ExpectUnchanged(const CodeCheck& check, const std::string& what,
                     const SoftmaxPart& expected, const SoftmaxPart& found) {
  check.ExpectEqual(what + ": numbers in acc", expected.acc.size(),
                    found.acc.size());
  WithReason(
      "the M of a part without tokens means nothing, so it may not be "
      "compared with the other",
      [&] {
        check.ExpectEqual(what + ": S", expected.S, found.S);
        check.ExpectEqual(what + ": M", expected.M, found.M);
        for (std::size_t i = 0; i < found.acc.size(); ++i) {
          check.ExpectEqualAt(what + ": acc", static_cast<std::int64_t>(i),
                              expected.acc[i], found.acc[i]);
        }
      });
}

void ExpectRefused(const CodeCheck& check, const std::string& what,
                   const SoftmaxPart& part) {
  std::string line;
  try {
    const std::vector<float> out = Output(part);
    check.Expect(false, StrCat(what, ": expected an Error (Fail in ",
                               "common/base/error.h), found an output whose "
                               "first number is ",
                               out.empty() ? 0 : out[0]));
  } catch (const Error& error) {
    line = error.what();
  } catch (const std::exception& other) {
    check.Expect(false, StrCat(what, ": expected an Error (Fail in ",
                               "common/base/error.h), found an exception of "
                               "another type: ",
                               other.what()));
  }
  check.Expect(!line.empty() && line.find('\n') == std::string::npos,
               "the Error must say in one line what was expected and found");
}

void Tests(CodeCheck& check) {
  const auto test = [&check](const char* name, const char* lesson,
                             const auto& body) {
    RandomTest(check, name, lesson, body);
  };

  test("seen_once", kArriving, [&](RandomNumbers& random) {
    // Rising scores: every chunk has a rescale.
    ExpectStream(
        check, "100 tokens", RowsWithScores(random, 64, Steps(100, -3, 3)),
        DrawnSizes(random, 100),
        "the memory of a chunk is overwritten (here: with NaN) when "
        "the next one is asked for, also at the end; what a chunk is "
        "needed for must be done before. Rows beyond its tokens are NaN too");
  });

  test("memory", kArriving, [&](RandomNumbers& random) {
    const auto peak = [&random](int n) {
      const HeadRows<float> rows =
          RowsWithScores(random, 16, ScoresAround(random, n, 0));
      ChunkedRows source(rows, TileSizes(n, 32));
      const HeapPeak heap;
      ReadStream(rows.query, source);
      return heap.bytes();
    };
    const std::int64_t few = peak(64), many = peak(4096);
    check.Expect(
        many <= few,
        StrCat("bytes allocated at once: ", few, " for 64 tokens, but ", many,
               " for 4,096; a stream has no end that memory could "
               "be made for"));
  });

  test("any_chunks", kArriving, [&](RandomNumbers& random) {
    for (const int n : {1, 31, 32, 33, 63, 64, 127, 128, 129, 1000}) {
      const HeadRows<float> rows =
          RowsWithScores(random, 64, ScoresAround(random, n, 0));
      ExpectStream(check, StrCat("n = ", n), rows, TileSizes(n, 1));
      ExpectStream(check, StrCat("n = ", n), rows, TileSizes(n, 32));
      ExpectStream(check, StrCat("n = ", n), rows, DrawnSizes(random, n));
    }
    const HeadRows<float> rising =
        RowsWithScores(random, 80, Steps(300, -8, 8));
    ExpectStream(check, "300 rising scores", rising, DrawnSizes(random, 300));
    const HeadRows<float> falling =
        RowsWithScores(random, 80, Steps(300, 60, -60));
    ExpectStream(check, "300 falling scores", falling, DrawnSizes(random, 300));
  });

  test("far_from_zero", kStages, [&](RandomNumbers& random) {
    for (const int mean : {-200, 300}) {
      const HeadRows<float> rows =
          RowsWithScores(random, 64, ScoresAround(random, 100, mean));
      ExpectStream(check, StrCat("100 scores near ", mean), rows,
                   DrawnSizes(random, 100),
                   "exp(300) is infinity and exp(-200) is 0 in a float: exp "
                   "sees only differences to M, and the first token sets M");
    }
  });

  test("part", kStages, [&](RandomNumbers& random) {
    for (const int n : {1, 50, 129}) {
      const HeadRows<float> rows =
          RowsWithScores(random, 64, ScoresAround(random, n, -3));
      ExpectPart(check, rows, Read(rows, DrawnSizes(random, n)));
    }
  });

  test("no_token", kArriving, [&](RandomNumbers& random) {
    HeadRows<float> rows = RowsWithScores(random, 64, {});
    SoftmaxPart part;
    try {
      part = Read(rows, {});
    } catch (const std::exception& error) {
      check.Expect(false, StrCat("ReadStream threw where the stream ended at "
                                 "once: ",
                                 error.what(),
                                 "; a part without "
                                 "tokens may yet be merged with others, so "
                                 "only Output refuses it"));
    }
    check.ExpectEqual("S of a stream that ends at once", 0.0f, part.S);
    check.ExpectEqual("numbers in its acc", std::size_t{64}, part.acc.size());
    ExpectRefused(check, "the output of a stream that ends at once", part);
  });

  test("merge", kStages, [&](RandomNumbers& random) {
    const SoftmaxPart low = DrawnPart(random, -1.5f);
    const SoftmaxPart high = DrawnPart(random, 1.25f);
    ExpectMerged(check, "M of a = -1.5, of b = 1.25", low, high);
    ExpectMerged(check, "M of a = 1.25, of b = -1.5", high, low);
    ExpectMerged(check, "M of both = 1.25", high, DrawnPart(random, 1.25f));
    ExpectMerged(check, "M of a = -199, of b = 1.25", DrawnPart(random, -199),
                 high);
    ExpectMerged(check, "M of a = 1.25, of b = -199", high,
                 DrawnPart(random, -199));
  });

  test("merge_nothing", kStages, [&](RandomNumbers& random) {
    // Below 0, which is what M of a part without tokens happens to be.
    const SoftmaxPart part = DrawnPart(random, -200);
    const SoftmaxPart none = NoTokens(8);
    ExpectUnchanged(check, "a part, and one without tokens", part,
                    Merge(part, none));
    ExpectUnchanged(check, "one without tokens, and a part", part,
                    Merge(none, part));
    const SoftmaxPart still_none = Merge(none, none);
    check.ExpectEqual("S of two parts without tokens", 0.0f, still_none.S);
    ExpectRefused(check, "the output of two parts without tokens", still_none);
  });

  test("split", kArriving, [&](RandomNumbers& random) {
    // 200 tokens in six streams, two of them without a token. A merge is a
    // rescale more; as no stream has more than 60 tokens, none meets more
    // rescales than the tolerance allows for, one a token.
    std::vector<double> scores = ScoresAround(random, 200, -260);
    for (std::size_t t = 120; t < 124; ++t) scores[t] += 140;
    const HeadRows<float> rows = RowsWithScores(random, 64, scores);
    const int cut = random.Between(40, 60);
    const int ends[] = {cut, cut, 100, 150, 200, 200};
    std::vector<SoftmaxPart> parts;
    for (int first = 0; const int end : ends) {
      const HeadRows<float> share = Part(rows, first, end);
      parts.push_back(Read(share, DrawnSizes(random, end - first)));
      first = end;
    }
    const ExactAttention exact = Exactly(rows);
    std::vector<int> order(parts.size());
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < 20; ++round) {
      std::string text;
      for (const int i : order) text += StrCat(text.empty() ? "" : ", ", i);
      const auto part = [&](int i) { return parts[order[i]]; };
      // One after another, and in pairs.
      SoftmaxPart chain = part(0);
      for (int i = 1; i < 6; ++i) chain = Merge(chain, part(i));
      const SoftmaxPart tree =
          Merge(Merge(part(0), part(1)),
                Merge(Merge(part(2), part(3)), Merge(part(4), part(5))));
      const auto expect = [&](const SoftmaxPart& merged, const char* how) {
        ExpectOutput(check,
                     StrCat("200 tokens in 6 parts, merged ", how,
                            " in the order ", text),
                     exact, Output(merged), {}, "",
                     "a factor exp(M_old - M_new) is at most 1, and a part "
                     "without tokens has no say in M");
      };
      expect(chain, "one after another");
      expect(tree, "in pairs");
      for (int i = 5; i > 0; --i) {
        std::swap(order[i], order[random.Between(0, i)]);
      }
    }
  });
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  return kvlab::CodeCheckMain(argc, argv, kvlab::Tests);
}
