#include "common/lab/cli.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <new>

#include "build_info.h"
#include "common/base/error.h"

namespace kvlab {
namespace {

/// True if standard output is a pipe or socket that nobody reads any more.
bool ReaderHasGone() {
  pollfd out{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/// Writes out what is buffered. Throws Error if any of the output was lost.
void FinishStdout() {
  std::cout.flush();
  const bool lost =
      !std::cout || std::fflush(stdout) != 0 || std::ferror(stdout);
  if (lost && !ReaderHasGone()) {
    Fail("standard output cannot be written; is the disk full?");
  }
}

/// Reads the command line and does the work. Throws Error.
int ParseAndRun(CLI::App& app, int argc, const char* const* argv,
                const ProgramBody& body) {
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

std::string ReadAll(std::istream& in, const std::string& name,
                    std::uint64_t max_bytes) {
  std::string text;
  std::array<char, 65536> block;
  while (in) {
    in.read(block.data(), block.size());
    text.append(block.data(), static_cast<std::size_t>(in.gcount()));
    if (text.size() > max_bytes) {
      Fail(name, ": expected at most ", max_bytes, " bytes, found more");
    }
  }
  if (in.bad()) Fail(name, ": cannot be read");
  return text;
}

}  // namespace

int RunProgram(int argc, const char* const* argv, const std::string& name,
               const std::string& description, const ProgramSetup& setup,
               ExitCode failed) {
  std::signal(SIGPIPE, SIG_IGN);
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
    const ExitCode code = e.exit_code();
    return Report(name, e.what(), code == kExitFailed ? failed : code);
  } catch (const std::bad_alloc&) {
    return Report(name, "out of memory", failed);
  } catch (const std::exception& e) {
    return Report(name, Printable(e.what(), 400).c_str(), failed);
  }
}

std::string VersionText(std::string_view name) {
  return StrCat(name, " " KVLAB_VERSION "\ncommit    " KVLAB_COMMIT
                      "\ncompiler  " KVLAB_COMPILER "\nflags     " KVLAB_FLAGS);
}

std::string_view Version() { return KVLAB_VERSION; }

std::filesystem::path LabModelDirectory() { return KVLAB_LAB_MODEL_DIR; }

std::string ReadInput(const std::string& file, std::uint64_t max_bytes) {
  if (file == "-") return ReadAll(std::cin, "standard input", max_bytes);
  const std::string name = Printable(file, 1024);
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) {
    Fail(name, ": expected a file, found a directory");
  }
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    Fail(name, std::filesystem::exists(file, ignored)
                   ? ": cannot be opened for reading; check its rights"
                   : ": no such file");
  }
  return ReadAll(in, name, max_bytes);
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
