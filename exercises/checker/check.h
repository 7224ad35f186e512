/// \file
/// Checking an exercise: what a student has done, held against a run.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "exercises/checker/course.h"
#include "exercises/checker/progress.h"
#include "exercises/checker/replay.h"

namespace kvlab {

/// How a check came out.
enum class CheckVerdict {
  kPassed,
  kNotStarted,
  kUnanswered,  ///< answers are missing, none is wrong
  kWrong,       ///< an answer is
  kUnreadable,  ///< answers.toml is no TOML, or a file is gone
  kNotYours,    ///< something was changed or used that may not be
  kBuildError,  ///< the student's file does not compile
  kTestsFailed,
  kEnvironment,  ///< the machine cannot do it
};

/// A check and its report.
struct CheckResult {
  CheckVerdict verdict = CheckVerdict::kPassed;
  std::string text;  ///< for the student, lines that end with '\n'
  std::vector<Judgement> judgements = {};  ///< of answers
  std::vector<CodeTest> tests = {};  ///< of the run that failed, or the last
  std::map<std::string, double> scores = {};
};

/// Checks what is in the work folder. Writes nothing but into the build folder.
/// Throws Error if the check itself fails.
CheckResult CheckExercise(const Course& course, const Exercise& exercise,
                          Places& places, const WorkFolder& work,
                          const Progress& progress);

/// In the student's folder: the program of code, once it was built.
inline constexpr char kCodeProgram[] = ".program/check";

/// The seed of the second run of code.
std::uint32_t SecondSeed(std::uint32_t seed);

}  // namespace kvlab
