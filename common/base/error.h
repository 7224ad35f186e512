/// \file
/// One exception for bad input, one family of checks for bugs.
///
/// Bad input (a broken file, a wrong flag) is an Error: one line that names
/// what, where, what was expected, what was found and what to do. It is thrown
/// where it is seen and caught once, in the program's main function, which
/// prints it and exits with its code. A bug is a failed KVLAB_CHECK: it prints
/// both values and aborts.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kvlab {

/// Exit codes of every program (lab_compare gives 1 the meaning "different").
enum ExitCode : int {
  kExitDone = 0,          ///< the work was done (a needle NO is a result too)
  kExitFailed = 1,        ///< bad model, bad file, no memory
  kExitUsage = 2,         ///< unknown flag, a value out of range
  kExitInterrupted = 130  ///< Ctrl-C
};

/// Bad input. `what()` is the one line to print.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = kExitFailed)
      : std::runtime_error(message), exit_code_(code) {}
  ExitCode exit_code() const { return exit_code_; }

 private:
  ExitCode exit_code_;
};

/// The values written one after another, as `std::ostream` writes them.
template <typename... Ts>
std::string StrCat(const Ts&... values) {
  std::ostringstream out;
  (out << ... << values);
  return out.str();
}

/// Throws Error(kExitFailed) with the values as its message.
template <typename... Ts>
[[noreturn]] void Fail(const Ts&... values) {
  throw Error(StrCat(values...), kExitFailed);
}

/// Throws Error(kExitUsage) with the values as its message.
template <typename... Ts>
[[noreturn]] void FailUsage(const Ts&... values) {
  throw Error(StrCat(values...), kExitUsage);
}

/// `text` fit for one line of a terminal: control characters and bytes that
/// are not UTF-8 as \xNN, cut after `max_bytes` with "...". For names and
/// values out of untrusted files.
std::string Printable(std::string_view text, std::size_t max_bytes = 80);

/// Prints "file:line: check failed: text" and aborts.
[[noreturn]] void CheckFailed(const char* file, int line,
                              const std::string& text);

}  // namespace kvlab

/// Aborts with file, line and the condition's text unless it holds.
#define KVLAB_CHECK(condition)                              \
  do {                                                      \
    if (!(condition)) [[unlikely]]                          \
      ::kvlab::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#define KVLAB_CHECK_OP_(a, op, b)                                            \
  do {                                                                       \
    const auto& kvlab_a = (a);                                               \
    const auto& kvlab_b = (b);                                               \
    if (!(kvlab_a op kvlab_b)) [[unlikely]]                                  \
      ::kvlab::CheckFailed(__FILE__, __LINE__,                               \
                           ::kvlab::StrCat(#a " " #op " " #b, " (", kvlab_a, \
                                           " against ", kvlab_b, ")"));      \
  } while (false)

/// Abort with both values unless the comparison holds.
#define KVLAB_CHECK_EQ(a, b) KVLAB_CHECK_OP_(a, ==, b)
#define KVLAB_CHECK_LE(a, b) KVLAB_CHECK_OP_(a, <=, b)
#define KVLAB_CHECK_LT(a, b) KVLAB_CHECK_OP_(a, <, b)
#define KVLAB_CHECK_GE(a, b) KVLAB_CHECK_OP_(a, >=, b)
#define KVLAB_CHECK_GT(a, b) KVLAB_CHECK_OP_(a, >, b)
