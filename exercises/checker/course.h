/// \file
/// What exercises there are: exercises/course.toml.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// What a student does in an exercise, and so how it is checked.
enum class ExerciseKind {
  kGdb,     ///< looks with the debugger, answers in answers.toml
  kCode,    ///< writes a function that is tested
  kRead,    ///< reads code, answers in answers.toml
  kExplore  ///< runs programs and compares, answers in answers.toml
};

/// "gdb", "code", "read", "explore".
std::string_view KindName(ExerciseKind kind);

/// One exercise of the course.
struct Exercise {
  int number = 0;           ///< its place in the course, from 1
  std::string name = {};    ///< "running_maximum"
  std::string folder = {};  ///< "02_running_maximum"
  std::string title = {};
  std::string lesson = {};  ///< "8-2"
  std::string read = {};    ///< where the lesson is: a file, or file#section
  ExerciseKind kind = ExerciseKind::kGdb;
  int minutes = 0;
  std::vector<std::string> needs = {};  ///< names of exercises to do before

  /// Not code: the program that is watched, and its options, in which {seed}
  /// and {context} stand for the student's.
  std::string program = {};
  std::vector<std::string> args = {};

  /// Code: the file that the student writes, the test that the starter fails
  /// first, and words that may not stand in it.
  std::string source = {};
  std::string starter_fails = {};
  std::vector<std::string> forbidden = {};

  std::vector<std::string> hints = {};  ///< four

  bool is_code() const { return kind == ExerciseKind::kCode; }
};

/// A term, the lesson that introduces it, and the forms in which it is written:
/// no exercise of an earlier lesson may use it.
struct Concept {
  std::string lesson;
  std::vector<std::string> words;
};

/// The whole course.
struct Course {
  std::filesystem::path root;        ///< the folder exercises/
  std::vector<std::string> lessons;  ///< in the order of reading
  std::vector<Exercise> exercises;
  std::vector<Concept> concepts;

  /// By number, or by name or its beginning. Throws a usage Error.
  const Exercise& Find(const std::string& which) const;

  std::filesystem::path Folder(const Exercise& exercise) const {
    return root / exercise.folder;
  }
  /// Where the solution of an exercise is.
  std::filesystem::path SolutionFolder(const Exercise& exercise) const {
    return root / "solutions" / exercise.folder;
  }
  /// The files that a student gets, by name: the source, or answers.toml.
  std::vector<std::string> StarterFiles(const Exercise& exercise) const;
};

/// Reads root/course.toml. Throws Error naming file and line.
Course ReadCourse(const std::filesystem::path& root);

/// The number from 176 to 239 that {context} stands for.
int ContextOf(std::uint32_t seed);

/// The command line of an exercise that is not code, with {seed} and {context}
/// filled in, without the program.
std::vector<std::string> ArgumentsOf(const Exercise& exercise,
                                     std::uint32_t seed);

}  // namespace kvlab
