/// \file
/// What the check of a code exercise is written with: tests of a student's
/// function, whose failures say where, what was expected, what was found, and
/// which lesson has it.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/error.h"

namespace kvlab {

/// A failed expectation; it ends its test.
struct FailedExpectation {
  std::string message;
};

/// Runs the tests of one exercise, and says of each what came out.
class CodeCheck {
 public:
  /// `only`: the name of the one test to be run; empty: all. `report`: a file
  /// descriptor for the results; -1: they are printed.
  explicit CodeCheck(std::uint32_t seed, std::string only = "", int report = -1)
      : seed_(seed), only_(std::move(only)), report_(report) {}

  /// What the inputs are to be drawn with: another for every student, and
  /// another once more for the second run.
  std::uint32_t Seed() const { return seed_; }

  /// Runs `body`; its first failed expectation, or an exception, makes the test
  /// fail. `lesson` says where to read, e.g.
  /// "day09_kv_q8/README.md#the-stages".
  void Test(const std::string& name, const std::string& lesson,
            const std::function<void()>& body);

  /// Expectations, to be used inside a test.
  void Expect(bool ok, const std::string& message) const;
  template <typename T>
  void ExpectEqual(std::string_view what, const T& expected,
                   const T& found) const {
    if (!(expected == found)) Different(what, Text(expected), Text(found));
  }
  template <typename T>
  void ExpectEqualAt(std::string_view what, std::int64_t index,
                     const T& expected, const T& found) const {
    ExpectEqual(StrCat(what, "[", index, "]"), expected, found);
  }
  /// |found - expected| <= tolerance; a NaN fails.
  void ExpectNear(std::string_view what, std::int64_t index, double expected,
                  double found, double tolerance) const;

  /// A result that neither passes nor fails: for the scoreboard. Larger is
  /// better. "article: mass recall" is what somebody else has.
  void Score(const std::string& name, double value) const;

  bool all_passed() const { return all_passed_; }
  int tests() const { return tests_; }  ///< that were run

  /// A record of the report, if there is one.
  void Report(const std::string& json) const;

 private:
  template <typename T>
  static std::string Text(const T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(value)) return "nan";  // whatever its sign
    }
    std::ostringstream out;
    out.precision(9);
    out << value;
    return out.str();
  }
  [[noreturn]] static void Different(std::string_view what,
                                     const std::string& expected,
                                     const std::string& found);

  std::uint32_t seed_;
  std::string only_;
  int report_;
  int tests_ = 0;
  bool all_passed_ = true;
};

/// The main function of a check: reads --seed N, --only TEST and --report FILE,
/// runs the tests, and prints a line for each. With --report, JSON objects go
/// to the file instead, one a line, apart from what the student's code prints:
/// {"begins", "lesson"} before a test, so that a crash has a name, {"test",
/// "failure"} after it (null: passed), {"score", "value"}, and {"end": number
/// of tests}. Ends itself after 20 seconds, and on 16 MB printed or 4 GB used.
/// Exit code 0: all passed, 1: some failed.
int CodeCheckMain(int argc, char** argv,
                  const std::function<void(CodeCheck&)>& tests);

}  // namespace kvlab
