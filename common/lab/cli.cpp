#include "common/lab/cli.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <limits>
#include <new>
#include <system_error>

#include "build_info.h"
#include "common/base/error.h"
#include "common/lab/interrupt.h"
#include "common/loader/json.h"

namespace kvlab {
namespace {

const char* program_name = "kvlab";

/// True if standard output is a pipe or socket that nobody reads any more.
bool ReaderHasGone() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/// Reads the command line and does the work. Throws Error.
int ParseAndRun(CLI::App& app, int argc, const char* const* argv,
                const ProgramBody& body) {
  // CLI11 would take the next argument for the value.
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--") && argument.size() > 3 &&
        argument.find('=') == argument.size() - 1) {
      FailUsage(Printable(argument), " expected a value, found an empty one");
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e, std::cout, std::cerr);
  } catch (const CLI::ParseError& e) {
    FailUsage(Printable(e.what(), 400), " (see ", app.get_name(), " --help)");
  }
  return body();
}

int Report(const std::string& name, const char* message, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", name.c_str(), message);
  return exit_code;
}

/// A number in decimal digits for which `good` holds; `expected` says so.
CLI::Validator DecimalNumber(const char* expected, bool (*good)(double)) {
  return {[=](std::string& value) -> std::string {
            double number = 0;
            const char* end = value.data() + value.size();
            const auto [rest, error] =
                std::from_chars(value.data(), end, number);
            if (error == std::errc() && rest == end && good(number)) return "";
            return StrCat("expected ", expected, ", found \"", Printable(value),
                          "\"");
          },
          ""};
}

/// Everything that can be read from an open file.
std::string ReadAll(int file, const std::string& name,
                    std::uint64_t max_bytes) {
  const auto fail = [&](int error) {
    CheckInterrupted();
    if (error == EISDIR) Fail(name, ": expected a file, found a directory");
    Fail(name, ": cannot be read: ", std::generic_category().message(error));
  };
  std::string text;
  std::array<char, 65536> block;
  while (true) {
    const ssize_t got = ::read(file, block.data(), block.size());
    if (got < 0) fail(errno);
    if (got == 0) return text;
    text.append(block.data(), static_cast<std::size_t>(got));
    if (text.size() > max_bytes) {
      Fail(name, ": expected at most ", max_bytes, " bytes, found more");
    }
  }
}

/// Where no catch can help: an allocation that fails inside a destructor, a
/// bug.
[[noreturn]] void Terminate() {
  const char* what = "a bug: terminated without a reason";
  try {
    if (std::current_exception())
      std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    what = "out of memory";
  } catch (const std::exception& e) {
    what = e.what();
  } catch (...) {
  }
  std::fprintf(stderr, "%s: %s\n", program_name, what);
  std::_Exit(kExitFailed);
}

}  // namespace

int RunProgram(int argc, const char* const* argv, const std::string& name,
               const std::string& description, const ProgramSetup& setup,
               ExitCode failed) {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond ulimit -f: write() fails
  program_name = name.c_str();
  std::set_terminate(Terminate);
  try {
    CLI::App app(description, name);
    const ProgramBody body = setup(app);
    const std::string version = VersionText(name);
    app.set_version_flag("--version", version);
    for (CLI::App* command : app.get_subcommands({})) {
      command->set_version_flag("--version", version);
    }
    const int exit_code = ParseAndRun(app, argc, argv, body);
    FinishStdout();
    return exit_code;
  } catch (const Error& e) {
    // Whatever failed because a signal came failed because of the signal.
    const ExitCode code = e.exit_code();
    if (Interrupted() && code != kExitInterrupted) {
      return Report(name, "interrupted", kExitInterrupted);
    }
    return Report(name, e.what(), code == kExitFailed ? failed : code);
  } catch (const std::bad_alloc&) {
    return Report(name, "out of memory", failed);
  } catch (const std::exception& e) {
    return Report(name, Printable(e.what(), 400).c_str(), failed);
  }
}

void DeclareMachineOptions(CLI::App& app, int& threads, std::string& isa) {
  app.add_option("--threads", threads,
                 threads == 1 ? "Threads (default: 1)"
                              : "Threads (default: physical cores)")
      ->transform(WholeNumber(1, 1024))
      ->type_name("N");
  app.add_option("--isa", isa,
                 "Instruction set of the primitives (default: the best that "
                 "this CPU has)")
      ->transform(NotEmpty())
      ->type_name("NAME");
}

std::string VersionText(std::string_view name) {
  return StrCat(name, " " KVLAB_VERSION "\ncommit    " KVLAB_COMMIT
                      "\ncompiler  " KVLAB_COMPILER "\nflags     " KVLAB_FLAGS);
}

std::string_view Version() { return KVLAB_VERSION; }

std::filesystem::path LabModelDirectory() { return KVLAB_LAB_MODEL_DIR; }

void FinishStdout() {
  std::cout.flush();
  const bool lost =
      !std::cout || std::fflush(stdout) != 0 || std::ferror(stdout);
  if (lost && !ReaderHasGone()) {
    Fail("standard output cannot be written; is the disk full?");
  }
}

void Warn(const std::string& message) {
  std::fprintf(stderr, "%s: warning: %s\n", program_name, message.c_str());
}

CLI::Validator NotEmpty() {
  return {[](std::string& value) -> std::string {
            return value.empty() ? "expected a value, found an empty one" : "";
          },
          ""};
}

CLI::Validator WholeNumber(std::uint64_t low, std::uint64_t high) {
  return {[=](std::string& value) -> std::string {
            std::uint64_t number = 0;
            const char* end = value.data() + value.size();
            const auto [rest, error] =
                std::from_chars(value.data(), end, number);
            if (error == std::errc() && rest == end && low <= number &&
                number <= high) {
              value = std::to_string(number);
              return "";
            }
            return StrCat("expected a whole number from ", low, " to ", high,
                          ", found \"", Printable(value), "\"");
          },
          ""};
}

CLI::Validator Share() {
  return DecimalNumber("a number from 0 to 1",
                       [](double x) { return 0 <= x && x <= 1; });
}

CLI::Validator NotNegative() {
  return DecimalNumber("a decimal number of 0 or more, like 0.001 or 1e-6",
                       [](double x) { return x >= 0 && std::isfinite(x); });
}

CLI::Validator OutputName() {
  return {[](std::string& value) -> std::string {
            if (value.empty()) return "expected a value, found an empty one";
            if (value != "-") return "";
            return "expected the name of a file, found \"-\": standard output "
                   "has the report; a file of that name is ./-";
          },
          ""};
}

void RequireDistinctFiles(const std::vector<FileOption>& outputs,
                          const std::vector<FileOption>& inputs) {
  namespace fs = std::filesystem;
  const auto same = [](const std::string& a, const std::string& b) {
    if (a.empty() || b.empty() || a == "-" || b == "-") return false;
    std::error_code error;
    // A device takes what both write.
    if (fs::exists(a, error) && !fs::is_regular_file(a, error)) return false;
    if (fs::equivalent(a, b, error)) return true;
    // Files that are not there yet: by their whole names, links resolved, also
    // a link to what is not there.
    const auto whole = [](fs::path path) {
      std::error_code ignored;
      for (int links = 0; links < 40 && fs::is_symlink(path, ignored);
           ++links) {
        const fs::path to = fs::read_symlink(path, ignored);
        path = to.is_absolute() ? to : path.parent_path() / to;
      }
      return fs::weakly_canonical(fs::absolute(path, ignored), ignored);
    };
    return whole(a) == whole(b);
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = i + 1; j < outputs.size(); ++j) {
      if (!same(outputs[i].file, outputs[j].file)) continue;
      FailUsage(outputs[i].option, " and ", outputs[j].option, ": ",
                PathText(outputs[i].file),
                " is named by both; one would be lost");
    }
    for (const FileOption& input : inputs) {
      if (!same(outputs[i].file, input.file)) continue;
      FailUsage(outputs[i].option, ": ", PathText(outputs[i].file), " is what ",
                input.option, " reads; it would be overwritten");
    }
  }
}

std::string ReadInput(const std::string& file, std::uint64_t max_bytes) {
  if (file == "-") return ReadAll(STDIN_FILENO, "standard input", max_bytes);
  const std::string name = PathText(file);
  const int opened = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) {
    const int error = errno;
    CheckInterrupted();
    if (error == ENOENT) Fail(name, ": no such file");
    Fail(name, ": cannot be opened for reading: ",
         std::generic_category().message(error));
  }
  try {
    std::string text = ReadAll(opened, name, max_bytes);
    ::close(opened);
    return text;
  } catch (...) {
    ::close(opened);
    throw;
  }
}

void PrintLine(const std::string& label, const std::string& value) {
  std::cout << label
            << std::string(std::max<std::size_t>(
                               1, 20 - std::min<std::size_t>(20, label.size())),
                           ' ')
            << value << '\n';
}

int TerminalColumns() {
  winsize size{};
  const bool known =
      ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 100;
}

std::string ForTerminal(std::string_view text) {
  if (::isatty(STDOUT_FILENO) == 0) return std::string(text);
  std::string shown;
  while (!text.empty()) {
    const std::size_t end = text.find_first_of("\n\t");
    shown +=
        Printable(text.substr(0, end), std::numeric_limits<std::size_t>::max());
    if (end == std::string_view::npos) break;
    shown += text[end];
    text.remove_prefix(end + 1);
  }
  return shown;
}

}  // namespace kvlab
