/// \file
/// What every program of the course does the same way around its work: its
/// command line, --help and --version, errors, exit codes, a closed pipe.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/error.h"

namespace kvlab {

/// The work of a program, after its command line was read. Returns the exit
/// code.
using ProgramBody = std::function<int()>;

/// Declares a program's options and returns its work. What the options are
/// stored in must live as long as the returned function (capture a shared_ptr).
using ProgramSetup = std::function<ProgramBody(CLI::App& app)>;

/// Runs a program: declares the options, adds --version to the program and its
/// subcommands, reads the command line, does the work. This is the one place
/// that catches Error: it prints "NAME: message" on stderr and returns the
/// error's exit code. A wrong command line gives one line and kExitUsage.
///
/// A reader that has gone (`| head`) is no error: SIGPIPE is ignored, so that
/// the rest of the work - a dump to a file - is still done. Any other failure
/// to write standard output is one, even if the work went well.
///
/// `failed` is the exit code of work that failed, where 1 means something else.
int RunProgram(int argc, const char* const* argv, const std::string& name,
               const std::string& description, const ProgramSetup& setup,
               ExitCode failed = kExitFailed);

/// Writes out what standard output has so far. Throws Error if any of it was
/// lost: before something is done that a failed run must not do.
void FinishStdout();

/// Writes "NAME: warning: message" to stderr, as errors are written.
void Warn(const std::string& message);

/// For CLI::Option::transform: what a value must be, with a message that says
/// what was expected and found.
CLI::Validator NotEmpty();
/// A whole number in decimal digits; leading zeros do not make it octal.
CLI::Validator WholeNumber(std::uint64_t low, std::uint64_t high);
/// A number from 0 to 1, in decimal digits: 0.5, 1e-6.
CLI::Validator Share();
/// A finite number of 0 or more, in decimal digits.
CLI::Validator NotNegative();
/// The name of a file to be written. Not "-": what an option names is a file,
/// standard output has the report.
CLI::Validator OutputName();

/// Declares --threads (default: what `threads` holds) and --isa.
void DeclareMachineOptions(CLI::App& app, int& threads, std::string& isa);

/// What --version prints: program, version, commit, compiler and flags.
std::string VersionText(std::string_view name);

/// The version alone, for reports: "0.1.0".
std::string_view Version();

/// The model that ships with the course, where --model or DIR is not given.
std::filesystem::path LabModelDirectory();

/// A file named by an option.
struct FileOption {
  const char* option;
  std::string file;  ///< empty: not given
};

/// Throws a usage Error if two outputs, or an output and an input, are the same
/// file: one of them would be lost.
void RequireDistinctFiles(const std::vector<FileOption>& outputs,
                          const std::vector<FileOption>& inputs = {});

/// The text of a file that the user names; "-" is standard input, pipes and
/// devices are read too. Throws Error if it cannot be read, is longer than
/// `max_bytes`, or a signal comes while it waits (see InterruptGuard).
std::string ReadInput(const std::string& file,
                      std::uint64_t max_bytes = 64'000'000);

/// A line of a report on stdout: the label, the value at column 20.
void PrintLine(const std::string& label, const std::string& value);

/// Characters in a line of the terminal that standard output is; 100 if it is
/// none, or does not tell.
int TerminalColumns();

/// `text` to be shown as it is, over several lines: if standard output is a
/// terminal, control characters other than newline and tab become \xNN, since a
/// model's text could otherwise move the cursor or worse. Unchanged on a pipe.
std::string ForTerminal(std::string_view text);

}  // namespace kvlab
