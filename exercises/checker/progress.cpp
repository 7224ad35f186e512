#include "exercises/checker/progress.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <system_error>

#include "common/base/error.h"
#include "common/loader/json.h"
#include "common/loader/output_file.h"
#include "exercises/checker/file_lock.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 1;
/// Short enough to be read aloud in a class.
constexpr std::uint32_t kMaxSeed = 999'999;

/// Two digits and words of small letters, joined by "_".
bool IsExerciseFolder(std::string_view name) {
  const auto is = [](char c, std::string_view set) {
    return set.find(c) != std::string_view::npos;
  };
  return name.size() > 3 && is(name[0], "0123456789") &&
         is(name[1], "0123456789") && name[2] == '_' &&
         std::ranges::all_of(name, [&](char c) {
           return is(c, "abcdefghijklmnopqrstuvwxyz0123456789_");
         });
}

Progress Parse(const Json& json, const std::string& where) {
  const JsonFields top(json, where);
  top.Int("format", kFormat, kFormat);
  Progress progress{
      .seed = static_cast<std::uint32_t>(top.Int("student_seed", 1, kMaxSeed))};
  const Json* exercises = top.Find("exercises");
  if (exercises == nullptr || !exercises->is_object()) {
    top.Refuse("exercises", "an object", "none");
  }
  for (const auto& [name, object] : exercises->items()) {
    const JsonFields fields(object, where, "exercises." + name + ".");
    ExerciseRecord record{.folder = fields.String("folder"),
                          .started = fields.String("started"),
                          .checks = fields.IntOr("checks", 0, 0, kMostChecks),
                          .hints = fields.IntOr("hints", 0, 0, 100),
                          .gave_up = fields.BoolOr("gave_up", false)};
    // What names a folder of ours may not lead out of it.
    if (!IsExerciseFolder(record.folder)) {
      fields.Refuse("folder", "a name as 02_running_maximum", record.folder);
    }
    if (fields.FindNonNull("passed") != nullptr) {
      record.passed = fields.String("passed");
    }
    if (const Json* scores = fields.FindNonNull("scores")) {
      for (const auto& [score, value] : scores->items()) {
        if (!value.is_number()) fields.Refuse("scores", "numbers", score);
        record.scores[score] = value.get<double>();
      }
    }
    progress.exercises[name] = record;
  }
  return progress;
}

std::string Print(const Progress& progress) {
  nlohmann::ordered_json json = {
      {"format", kFormat},
      {"student_seed", progress.seed},
      {"exercises", nlohmann::ordered_json::object()}};
  for (const auto& [name, record] : progress.exercises) {
    nlohmann::ordered_json& object = json["exercises"][name];
    object = {{"folder", record.folder}, {"started", record.started},
              {"passed", nullptr},       {"checks", record.checks},
              {"hints", record.hints},   {"gave_up", record.gave_up}};
    if (!record.passed.empty()) object["passed"] = record.passed;
    if (!record.scores.empty()) object["scores"] = record.scores;
  }
  return json.dump(2) + "\n";
}

std::time_t ParseTime(const std::string& text) {
  std::tm time = {};
  if (::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time) == nullptr) {
    return 0;
  }
  return ::timegm(&time);
}

void MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    Fail(PathText(folder), ": the folder cannot be made: ", error.message());
  }
}

}  // namespace

Progress WorkFolder::Read() const {
  if (HasEntry(folder_)) CheckDirectory(folder_);
  const fs::path file = folder_ / "progress.json";
  if (!HasEntry(file)) return {};
  try {
    return Parse(ReadJsonFile(file, 1'000'000), PathText(file));
  } catch (const Error& error) {
    Fail(error.what(),
         " (the file remembers how far you are; mend it, or delete it to begin "
         "anew: your other files stay)");
  }
}

Progress WorkFolder::Update(
    const std::function<void(Progress&)>& change) const {
  MakeFolder(folder_);
  const FileLock lock(folder_ / ".lock");
  Progress progress = Read();
  if (progress.seed == 0) {
    std::random_device device;
    progress.seed =
        std::uniform_int_distribution<std::uint32_t>(1, kMaxSeed)(device);
  }
  change(progress);
  OutputFile file(folder_ / "progress.json");
  file.Write(Print(progress));
  file.Commit();
  return progress;
}

void WorkFolder::CopyStarters(const Course& course, const Exercise& exercise,
                              const ExerciseRecord& record) const {
  MakeFolder(Of(record));
  MakeFolder(StartersOf(record));
  for (const std::string& name : course.StarterFiles(exercise)) {
    const std::string text =
        ReadSmallFile(course.Folder(exercise) / name, 1'000'000);
    for (const fs::path& target :
         {Of(record) / name, StartersOf(record) / name}) {
      if (HasEntry(target)) continue;
      OutputFile file(target);
      file.Write(text);
      file.Commit();
    }
  }
}

fs::path WorkFolder::BackUp(const ExerciseRecord& record) const {
  const fs::path backup = folder_ / "backup";
  MakeFolder(backup);
  std::string time = NowUtc();
  std::erase(time, ':');
  fs::path to = backup / (record.folder + "." + time);
  for (int n = 2; HasEntry(to); ++n) {
    to = backup / StrCat(record.folder, ".", time, ".", n);
  }
  std::error_code error;
  fs::rename(Of(record), to, error);
  if (error) {
    Fail(PathText(Of(record)), ": cannot be moved to ", PathText(to), ": ",
         error.message());
  }
  fs::remove_all(StartersOf(record), error);
  return to;
}

std::string NowUtc() {
  const std::time_t now =
      std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm time = {};
  ::gmtime_r(&now, &time);
  std::array<char, 32> text;
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &time);
  return text.data();
}

std::int64_t SecondsBetween(const std::string& from, const std::string& to) {
  return ParseTime(to) - ParseTime(from);
}

}  // namespace kvlab
