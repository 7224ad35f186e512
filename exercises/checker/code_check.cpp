#include "exercises/checker/code_check.h"

#include <unistd.h>

#include <cmath>
#include <exception>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/lab/cli.h"

namespace kvlab {
namespace {

/// A check takes a second; a loop that never ends is stopped by SIGALRM.
constexpr unsigned kMostSeconds = 20;

void PrintJson(const nlohmann::ordered_json& object) {
  // What a student's code printed may not be UTF-8.
  std::cout << object.dump(-1, ' ', false,
                           nlohmann::ordered_json::error_handler_t::replace)
            << std::endl;
}

}  // namespace

void CodeCheck::Test(const std::string& name, const std::string& lesson,
                     const std::function<void()>& body) {
  if (!only_.empty() && name != only_) return;
  found_ = true;
  if (json_) PrintJson({{"begins", name}, {"lesson", lesson}});
  std::string failure;
  try {
    body();
  } catch (const FailedExpectation& failed) {
    failure = failed.message;
  } catch (const std::exception& error) {
    failure = StrCat("an exception came out of it: ", error.what());
  }
  all_passed_ = all_passed_ && failure.empty();
  if (json_) {
    PrintJson({{"test", name}, {"failure", failure}});
  } else if (failure.empty()) {
    std::cout << "passed  " << name << std::endl;
  } else {
    std::cout << "FAILED  " << name << ": " << failure << " (" << lesson << ")"
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
  if (json_) {
    PrintJson({{"score", name}, {"value", value}});
  } else {
    std::cout << "score   " << name << ": " << value << std::endl;
  }
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
    bool json = false;
    std::string only;
  };
  return RunProgram(argc, argv, "check", "Tests the code of one exercise.",
                    [&tests](CLI::App& app) -> ProgramBody {
                      const auto o = std::make_shared<Options>();
                      app.add_option("--seed", o->seed,
                                     "What the inputs are drawn with");
                      app.add_flag("--json", o->json, "One JSON object a line");
                      app.add_option("--only", o->only, "The one test to run");
                      return [o, &tests] {
                        ::alarm(kMostSeconds);
                        CodeCheck check(o->seed, o->json);
                        tests(check);
                        return check.all_passed() ? kExitDone : kExitFailed;
                      };
                    });
}

}  // namespace kvlab
