#include "exercises/checker/code_check.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <exception>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/lab/cli.h"

namespace kvlab {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// A check takes a second; a loop that never ends is stopped by SIGALRM.
constexpr unsigned kMostSeconds = 20;
/// And code that does not heed it: seconds of computing, bytes that are
/// written, bytes of memory.
constexpr rlim_t kMostCpuSeconds = 2 * kMostSeconds;
constexpr rlim_t kMostWritten = 16'000'000;
constexpr rlim_t kMostMemory = 4'000'000'000;

void Limit(int resource, rlim_t most) {
  const rlimit limit{most, most};
  ::setrlimit(resource, &limit);
}

/// A student's text may not be UTF-8.
std::string Dumped(const OrderedJson& object) {
  return object.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

void CodeCheck::Report(const std::string& json) const {
  const std::string line = json + "\n";
  if (report_ >= 0 && ::write(report_, line.data(), line.size()) !=
                          static_cast<ssize_t>(line.size())) {
    Fail("the report cannot be written");
  }
}

void CodeCheck::Test(const std::string& name, const std::string& lesson,
                     const std::function<void()>& body) {
  if (!only_.empty() && name != only_) return;
  ++tests_;
  Report(Dumped({{"begins", name}, {"lesson", lesson}}));
  std::optional<std::string> failure;
  try {
    body();
  } catch (const FailedExpectation& failed) {
    failure = failed.message;
  } catch (const std::exception& error) {
    failure = StrCat("an exception came out of it: ", error.what());
  } catch (...) {
    failure = "something was thrown that is no std::exception";
  }
  std::cout.flush();
  all_passed_ = all_passed_ && !failure;
  OrderedJson record = {{"test", name}, {"failure", nullptr}};
  if (failure) record["failure"] = *failure;
  Report(Dumped(record));
  if (report_ >= 0) return;
  if (!failure) {
    std::cout << "passed  " << name << std::endl;
  } else {
    std::cout << "FAILED  " << name << ": " << *failure << " (" << lesson << ")"
              << std::endl;
  }
}

void CodeCheck::Expect(bool ok, const std::string& message) const {
  if (!ok) throw FailedExpectation{message};
}

void CodeCheck::ExpectNear(std::string_view what, std::int64_t index,
                           double expected, double found,
                           double tolerance) const {
  if (std::abs(found - expected) <= tolerance) return;
  Different(StrCat(what, "[", index, "]"),
            StrCat(Text(expected), " within ", tolerance), Text(found));
}

void CodeCheck::Score(const std::string& name, double value) const {
  Report(Dumped({{"score", name}, {"value", value}}));
  if (report_ < 0)
    std::cout << "score   " << name << ": " << value << std::endl;
}

void CodeCheck::Different(std::string_view what, const std::string& expected,
                          const std::string& found) {
  throw FailedExpectation{
      StrCat(what, ": expected ", expected, ", found ", found)};
}

int CodeCheckMain(int argc, char** argv,
                  const std::function<void(CodeCheck&)>& tests) {
  struct Options {
    std::uint32_t seed = 1;
    std::string only;
    std::string report;
  };
  return RunProgram(
      argc, argv, "check", "Tests the code of one exercise.",
      [&tests](CLI::App& app) -> ProgramBody {
        const auto o = std::make_shared<Options>();
        app.add_option("--seed", o->seed, "What the inputs are drawn with");
        app.add_option("--only", o->only, "The one test to run");
        app.add_option("--report", o->report,
                       "Results as JSON, for the checker");
        return [o, &tests] {
          int report = -1;
          if (!o->report.empty()) {
            report = ::open(o->report.c_str(),
                            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
            if (report < 0) Fail(o->report, ": cannot be written");
            // A student in the debugger may take his time; a check may not.
            ::alarm(kMostSeconds);
            Limit(RLIMIT_CPU, kMostCpuSeconds);
            Limit(RLIMIT_FSIZE, kMostWritten);
            Limit(RLIMIT_AS, kMostMemory);
            std::signal(SIGXFSZ, SIG_DFL);
          }
          CodeCheck check(o->seed, o->only, report);
          tests(check);
          if (check.tests() == 0) {
            FailUsage("there is no test \"", Printable(o->only), "\"");
          }
          check.Report(Dumped({{"end", check.tests()}}));
          return check.all_passed() ? kExitDone : kExitFailed;
        };
      });
}

}  // namespace kvlab
