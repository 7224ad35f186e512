/// \file
/// The student's own folder, exercises/work: the copies that he writes in, and
/// progress.json, which remembers how far he is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "exercises/checker/course.h"

namespace kvlab {

/// Checks are counted up to here.
inline constexpr int kMostChecks = 1'000'000;

/// What is remembered of one exercise. Times are UTC, "2026-11-30T19:25:12Z";
/// an empty one has not come.
struct ExerciseRecord {
  std::string folder;  ///< in the work folder: stays, should the course grow
  std::string started;
  std::string passed = {};  ///< the first time
  int checks = 0;
  int hints = 0;         ///< how many were shown
  bool gave_up = false;  ///< asked for the solution before he passed
  std::map<std::string, double> scores = {};  ///< the best of each
};

/// What is remembered of a student.
struct Progress {
  std::uint32_t seed = 0;  ///< drawn when his first exercise begins
  std::map<std::string, ExerciseRecord> exercises = {};  ///< by name

  const ExerciseRecord* Find(const std::string& name) const {
    const auto it = exercises.find(name);
    return it == exercises.end() ? nullptr : &it->second;
  }
};

/// The folder. Only `start` makes it.
class WorkFolder {
 public:
  explicit WorkFolder(std::filesystem::path folder)
      : folder_(std::move(folder)) {}

  const std::filesystem::path& path() const { return folder_; }

  /// An empty one if there is none yet. Throws Error if the file is damaged.
  Progress Read() const;

  /// Reads, lets `change` change it, and writes, while no other program of the
  /// course does; the file is replaced as a whole. Returns what was written.
  Progress Update(const std::function<void(Progress&)>& change) const;

  /// Where the student's copies of an exercise are.
  std::filesystem::path Of(const ExerciseRecord& record) const {
    return folder_ / record.folder;
  }
  /// The starters as they were copied: what the student's file is held against.
  std::filesystem::path StartersOf(const ExerciseRecord& record) const {
    return folder_ / ".starters" / record.folder;
  }

  /// Copies the starters. Files that are there already are left as they are.
  void CopyStarters(const Course& course, const Exercise& exercise,
                    const ExerciseRecord& record) const;

  /// Moves the student's folder of an exercise to backup/ and returns where it
  /// is now.
  std::filesystem::path BackUp(const ExerciseRecord& record) const;

 private:
  std::filesystem::path folder_;
};

/// The time now, as in ExerciseRecord.
std::string NowUtc();

/// Seconds between two such times.
std::int64_t SecondsBetween(const std::string& from, const std::string& to);

}  // namespace kvlab
