/// \file
/// Running a program as a student does: what it prints and how it ends.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "common/base/error.h"

namespace kvlab {

/// What a program left behind.
struct ProgramRun {
  int exit_code = -1;
  std::string out;
  std::string err;
};

/// `text` as one word of a shell command.
inline std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

/// Runs a shell command; its outputs go through files in `folder`.
inline ProgramRun RunCommand(const std::string& command,
                             const std::filesystem::path& folder) {
  const auto read = [&](const char* name) {
    std::ifstream file(folder / name, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  };
  const int status = std::system(
      StrCat("{ ", command, "\n} >", Quoted((folder / "out").string()), " 2>",
             Quoted((folder / "err").string()))
          .c_str());
  EXPECT_TRUE(WIFEXITED(status)) << command;
  return {WEXITSTATUS(status), read("out"), read("err")};
}

/// True if the run ended with `exit_code`, nothing on stdout and one line on
/// stderr that begins with "PROGRAM: " and holds `part`.
inline testing::AssertionResult FailsWithOneLine(const ProgramRun& run,
                                                 int exit_code,
                                                 const std::string& program,
                                                 const std::string& part) {
  const bool one_line = run.err.find('\n') == run.err.size() - 1;
  if (run.exit_code == exit_code && run.out.empty() && one_line &&
      run.err.starts_with(program + ": ") &&
      run.err.find(part) != std::string::npos) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure()
         << "expected exit code " << exit_code << " and one line with \""
         << part << "\"; found exit code " << run.exit_code << ", stdout \""
         << run.out << "\", stderr \"" << run.err << "\"";
}

}  // namespace kvlab
