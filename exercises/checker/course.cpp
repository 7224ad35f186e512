#include "exercises/checker/course.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "common/base/error.h"
#include "common/loader/json.h"
#include "exercises/checker/toml_fields.h"

namespace kvlab {
namespace {

constexpr std::array kKinds = {std::pair{ExerciseKind::kGdb, "gdb"},
                               std::pair{ExerciseKind::kCode, "code"},
                               std::pair{ExerciseKind::kRead, "read"},
                               std::pair{ExerciseKind::kExplore, "explore"}};

constexpr std::size_t kHints = 4;

ExerciseKind ParseKind(const TomlFields& fields) {
  const std::string name = fields.String("kind");
  for (const auto& [kind, kind_name] : kKinds) {
    if (name == kind_name) return kind;
  }
  fields.Refuse("kind", "gdb, code, read or explore", name);
}

Exercise ReadExercise(const TomlFields& fields, const Course& course) {
  fields.AllowOnly({"name", "title", "lesson", "read", "kind", "minutes",
                    "needs", "program", "args", "source", "starter_fails",
                    "forbidden", "hints"});
  Exercise e;
  e.number = static_cast<int>(course.exercises.size()) + 1;
  e.name = fields.String("name");
  e.folder = StrCat(e.number < 10 ? "0" : "", e.number, "_", e.name);
  e.title = fields.String("title");
  e.lesson = fields.String("lesson");
  if (std::ranges::find(course.lessons, e.lesson) == course.lessons.end()) {
    fields.Refuse("lesson", "one of the lessons named at the top", e.lesson);
  }
  e.read = fields.String("read");
  e.kind = ParseKind(fields);
  e.minutes = fields.Int("minutes", 1, 600);
  e.needs = fields.StringsOr("needs", {});
  for (const std::string& need : e.needs) {
    if (std::ranges::find(course.exercises, need, &Exercise::name) ==
        course.exercises.end()) {
      fields.Refuse("needs", "names of earlier exercises", need);
    }
  }
  if (e.is_code()) {
    e.source = fields.String("source");
    e.starter_fails = fields.String("starter_fails");
    e.forbidden = fields.StringsOr("forbidden", {});
  } else {
    e.program = fields.String("program");
    e.args = fields.StringsOr("args", {});
  }
  e.hints = fields.StringsOr("hints", {});
  if (e.hints.size() != kHints) {
    fields.Refuse("hints", "4 of them", std::to_string(e.hints.size()));
  }
  return e;
}

}  // namespace

std::string_view KindName(ExerciseKind kind) {
  return std::ranges::find(kKinds, kind, [](const auto& k) { return k.first; })
      ->second;
}

const Exercise& Course::Find(const std::string& which) const {
  for (const Exercise& e : exercises) {
    if (which == e.name || which == e.folder ||
        which == std::to_string(e.number) || which == e.folder.substr(0, 2)) {
      return e;
    }
  }
  // The beginning of one name will do.
  const Exercise* begun = nullptr;
  for (const Exercise& e : exercises) {
    if (which.empty() || !e.name.starts_with(which)) continue;
    if (begun != nullptr) {
      FailUsage("\"", Printable(which), "\" may be ", begun->name, " or ",
                e.name);
    }
    begun = &e;
  }
  if (begun != nullptr) return *begun;
  FailUsage("there is no exercise \"", Printable(which),
            "\"; expected a number from 1 to ", exercises.size(),
            " or a name: see ./lab exercises");
}

std::vector<std::string> Course::StarterFiles(const Exercise& exercise) const {
  return {exercise.is_code() ? exercise.source : "answers.toml"};
}

Course ReadCourse(const std::filesystem::path& root) {
  const std::filesystem::path file = root / "course.toml";
  const toml::table table = ReadTomlFile(file);
  const TomlFields top(table, PathText(file));
  top.AllowOnly({"lessons", "concept", "exercise"});
  Course course;
  course.root = root;
  course.lessons = top.StringsOr("lessons", {});
  for (const TomlFields& fields : top.Tables("concept")) {
    fields.AllowOnly({"lesson", "words"});
    course.concepts.push_back(
        {fields.String("lesson"), fields.StringsOr("words", {})});
  }
  for (const TomlFields& fields : top.Tables("exercise")) {
    course.exercises.push_back(ReadExercise(fields, course));
  }
  return course;
}

int ContextOf(std::uint32_t seed) { return 176 + static_cast<int>(seed % 64); }

std::vector<std::string> ArgumentsOf(const Exercise& exercise,
                                     std::uint32_t seed) {
  std::vector<std::string> args;
  for (std::string arg : exercise.args) {
    for (const auto& [name, value] :
         {std::pair<std::string, std::string>{"{seed}", std::to_string(seed)},
          {"{context}", std::to_string(ContextOf(seed))}}) {
      const std::size_t at = arg.find(name);
      if (at != std::string::npos) arg.replace(at, name.size(), value);
    }
    args.push_back(arg);
  }
  args.insert(args.end(), {"--isa", "scalar", "--threads", "1"});
  return args;
}

}  // namespace kvlab
