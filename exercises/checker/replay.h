/// \file
/// What a check looks at: the student's own program run once more under gdb, or
/// his code, built and tested.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "exercises/checker/answers.h"
#include "exercises/checker/course.h"

namespace kvlab {

/// The machine cannot do what the check needs; what() says what to do.
class EnvironmentFault : public Error {
 public:
  using Error::Error;
};

/// How programs are run under gdb.
enum class GdbMode {
  kNative,
  kQemu,    ///< on this CPU's emulator, where ptrace is refused
  kAarch64  ///< the programs for 64-bit ARM, on an emulator
};

/// Where things are.
struct Places {
  std::filesystem::path source;  ///< the top of the repository
  std::filesystem::path build;   ///< the folder of the preset `lesson`
  GdbMode mode = GdbMode::kNative;

  /// The folder of the programs that gdb runs.
  std::filesystem::path bin() const;
};

/// gdb and its options up to the program's command line.
std::vector<std::string> GdbCommand(const Places& places);

/// Tells exercises/gdb/kvlab.py, through the environment, where everything is.
void SetGdbEnvironment(const Places& places,
                       const std::filesystem::path& folder, std::uint32_t seed,
                       const std::filesystem::path& facts);

/// Throws EnvironmentFault unless gdb can run a program here; changes the mode
/// to kQemu where only that works.
void RequireGdb(Places& places);

/// Runs the exercise's facts.py. `folder` has the student's answers. Throws
/// EnvironmentFault, and Error if the check itself fails.
std::vector<Fact> ReplayFacts(const Course& course, const Exercise& exercise,
                              Places& places,
                              const std::filesystem::path& folder,
                              std::uint32_t seed);

/// How a build of a student's file went.
struct BuildResult {
  bool ok = false;
  std::string messages;  ///< of the compiler and the linker, about that file
};

/// Builds exercise_NAME of the student's file and puts it at `program`; one
/// build at a time. Messages name `file`. Throws EnvironmentFault if it fails
/// for another reason than the file.
BuildResult BuildCode(const Exercise& exercise, const Places& places,
                      const std::filesystem::path& file,
                      const std::filesystem::path& program);

/// One test of a student's code.
struct CodeTest {
  std::string name;
  std::string lesson;
  std::string failure;  ///< empty: passed
};

/// What a run of the tests gave.
struct CodeRun {
  std::vector<CodeTest> tests;
  std::map<std::string, double> scores;
  std::string printed;  ///< by the student's code
  bool passed() const;
};

/// Runs the program that BuildCode made.
CodeRun RunCode(const std::filesystem::path& program, std::uint32_t seed);

}  // namespace kvlab
