// The texts of the exercises: that what they name exists, that every hint says
// more than the one before, that nothing is used before its lesson.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <regex>
#include <set>

#include "common/lab/child_process.h"
#include "exercises/checker/course.h"
#include "exercises/checker/replay.h"
#include "tests/loader/temp_dir.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = KVLAB_SOURCE_DIR;

const Course& TheCourse() {
  static const Course course = ReadCourse(kRoot / "exercises");
  return course;
}

/// Everything that a student reads before the solution.
std::string Texts(const Exercise& e) {
  std::string text = e.title + "\n";
  for (const auto& entry : fs::directory_iterator(TheCourse().Folder(e))) {
    const auto extension = entry.path().extension();
    if (extension == ".md" || extension == ".toml" || extension == ".h") {
      text += ReadFile(entry.path());
    }
  }
  if (e.is_code()) text += ReadFile(TheCourse().Folder(e) / e.source);
  for (const std::string& hint : e.hints) text += hint + "\n";
  return text;
}

/// What `pattern` finds in `text`: its first group.
std::set<std::string> FindAll(const std::string& text,
                              const std::string& pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end;
       ++it) {
    found.insert((*it)[1]);
  }
  return found;
}

std::set<std::string> MarkersOf(const std::string& text) {
  return FindAll(text, "`\\[([a-z][a-z0-9_]*)\\]`");
}

std::string AllSources() {
  std::string text;
  for (const char* folder :
       {"common", "day09_kv_q8", "day10_sparse", "exercises"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
      const auto extension = entry.path().extension();
      if (extension == ".cpp" || extension == ".h") {
        text += ReadFile(entry.path());
      }
    }
  }
  return text;
}

std::string Lessons() {
  return ReadFile(kRoot / "day09_kv_q8/README.md") +
         ReadFile(kRoot / "day10_sparse/README.md");
}

class ExerciseTexts : public testing::TestWithParam<const Exercise*> {};

TEST_P(ExerciseTexts, HasItsParts) {
  const Exercise& e = *GetParam();
  const std::string readme = ReadFile(TheCourse().Folder(e) / "README.md");
  EXPECT_TRUE(readme.starts_with(StrCat("# ", e.title, "\n")))
      << "the title is not that of course.toml";
  for (const char* part :
       {"## What you need to know", "## The task", "## How it is checked"}) {
    EXPECT_TRUE(Has(readme, part));
  }
  const fs::path solution = TheCourse().SolutionFolder(e);
  EXPECT_TRUE(fs::exists(solution / "README.md"));
  EXPECT_TRUE(fs::exists(solution / (e.is_code() ? e.source : "session.gdb")));
  const fs::path read = kRoot / e.read.substr(0, e.read.find('#'));
  EXPECT_TRUE(fs::exists(read)) << read;
}

TEST_P(ExerciseTexts, MarkersAreInTheCodeAndInTheLesson) {
  static const std::string sources = AllSources();
  static const std::string lessons = Lessons();
  for (const std::string& marker : MarkersOf(Texts(*GetParam()))) {
    if (marker == "yours") continue;
    const std::size_t first = sources.find("// [" + marker + "]\n");
    EXPECT_NE(first, std::string::npos) << marker << " is in no source file";
    EXPECT_NE(lessons.find("`[" + marker + "]`"), std::string::npos)
        << marker << " is in no lesson";
  }
}

TEST_P(ExerciseTexts, MarkersStopTheDebugger) {
  const Exercise& e = *GetParam();
  if (e.is_code()) return;
  const std::set<std::string> markers = MarkersOf(Texts(e));
  if (markers.empty()) return;
  const Places places{.source = kRoot, .build = KVLAB_BINARY_DIR};
  const TempDir dir;
  SetGdbEnvironment(places, dir.path(), 1, "");
  std::vector<std::string> command = GdbCommand(places);
  command.emplace_back("-batch");
  for (const std::string& marker : markers) {
    command.insert(command.end(), {"-ex", "stop-at " + marker});
  }
  command.insert(command.end(), {"--args", places.bin() / e.program});
  const auto result = RunChild(command, "");
  ASSERT_TRUE(result.has_value());
  const std::string out = result->out + result->err;
  std::size_t breakpoints = 0;
  for (std::size_t at = out.find("Breakpoint "); at != std::string::npos;
       at = out.find("Breakpoint ", at + 1)) {
    ++breakpoints;
  }
  EXPECT_GE(breakpoints, markers.size()) << out;
}

TEST_P(ExerciseTexts, EveryHintSaysMore) {
  const Exercise& e = *GetParam();
  std::set<std::string> known;
  for (std::size_t i = 0; i < e.hints.size(); ++i) {
    std::set<std::string> facts = FindAll(e.hints[i], "`([^`]+)`");
    facts.merge(FindAll(e.hints[i], "([0-9]+)"));
    const bool is_new = std::ranges::any_of(
        facts, [&](const auto& fact) { return !known.contains(fact); });
    EXPECT_TRUE(is_new) << "hint " << i + 1
                        << " names nothing (`name` or number) that those "
                           "before it did not";
    known.merge(facts);
  }
}

TEST_P(ExerciseTexts, NothingIsUsedBeforeItsLesson) {
  const Exercise& e = *GetParam();
  const auto place = [](const std::string& lesson) {
    return std::ranges::find(TheCourse().lessons, lesson) -
           TheCourse().lessons.begin();
  };
  std::string text = Texts(e);
  // Names of files and folders are no use of a term, nor are exercise names.
  text = std::regex_replace(text, std::regex("[A-Za-z0-9_]*/[A-Za-z0-9_./#-]*"),
                            "");
  for (const Concept& term : TheCourse().concepts) {
    if (place(term.lesson) <= place(e.lesson)) continue;
    for (const std::string& word : term.words) {
      const std::regex regex("\\b" + word, std::regex::icase);
      std::smatch match;
      if (std::regex_search(text, match, regex)) {
        ADD_FAILURE() << "\"" << match.str() << "\" belongs to lesson "
                      << term.lesson << ": ..."
                      << match.prefix().str().substr(
                             match.prefix().length() -
                             std::min<std::ptrdiff_t>(60,
                                                      match.prefix().length()));
      }
    }
  }
}

std::vector<const Exercise*> All() {
  std::vector<const Exercise*> exercises;
  for (const Exercise& e : TheCourse().exercises) exercises.push_back(&e);
  return exercises;
}

INSTANTIATE_TEST_SUITE_P(Exercises, ExerciseTexts, testing::ValuesIn(All()),
                         [](const auto& info) { return info.param->name; });

TEST(CourseTexts, HasEverythingInOrder) {
  const Course& course = TheCourse();
  EXPECT_GE(course.exercises.size(), 16u);
  std::ptrdiff_t last = 0;
  for (const Exercise& e : course.exercises) {
    const auto place =
        std::ranges::find(course.lessons, e.lesson) - course.lessons.begin();
    EXPECT_GE(place, last - 2) << e.name;  // a lesson may be gone back to
    last = place;
  }
  // No folder is forgotten.
  for (const auto& entry : fs::directory_iterator(course.root)) {
    const std::string name = entry.path().filename();
    if (std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    EXPECT_TRUE(std::ranges::any_of(
        course.exercises, [&](const Exercise& e) { return e.folder == name; }))
        << name << " is not in course.toml";
  }
}

}  // namespace
}  // namespace kvlab
