// The student's folder and the course's list, and what the program does with
// wrong use. What needs gdb or a compiler is in proof_test.cpp.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "exercises/checker/course.h"
#include "exercises/checker/progress.h"
#include "tests/loader/temp_dir.h"
#include "tests/require.h"
#include "tests/support/program.h"

namespace kvlab {
namespace {

constexpr char kExercise[] = R"([[exercise]]
name = "one"
title = "One"
lesson = "8-1"
read = "day09_kv_q8/README.md"
kind = "gdb"
minutes = 10
program = "day09_three_pass"
args = ["--seed", "{seed}", "--context", "{context}"]
hints = ["a", "b", "c", "d"]
)";

class CourseTest : public testing::Test {
 protected:
  std::string ErrorIn(const std::string& text) {
    WriteFile(dir_ / "course.toml", "lessons = [\"8-1\"]\n" + text);
    return ErrorOf([&] { ReadCourse(dir_.path()); });
  }
  TempDir dir_;
};

TEST_F(CourseTest, ReadsAndNumbers) {
  std::string two = kExercise;
  two.replace(two.find("\"one\""), 5, "\"two\"");
  ASSERT_EQ(ErrorIn(std::string(kExercise) + two), "");
  const Course course = ReadCourse(dir_.path());
  ASSERT_EQ(course.exercises.size(), 2u);
  EXPECT_EQ(course.exercises[1].folder, "02_two");
  for (const char* which : {"2", "02", "two", "02_two", "tw"}) {
    EXPECT_EQ(course.Find(which).number, 2) << which;
  }
  for (const char* which : {"0", "3", "", "three", "-1"}) {
    EXPECT_TRUE(Has(ErrorOf([&] { course.Find(which); }), "from 1 to 2"))
        << which;
  }
  EXPECT_EQ(ArgumentsOf(course.exercises[0], 65),
            (std::vector<std::string>{"--seed", "65", "--context", "177",
                                      "--isa", "scalar", "--threads", "1"}));
}

TEST_F(CourseTest, RefusesWhatIsNotThere) {
  const auto with = [&](const char* from, const char* to) {
    std::string text = kExercise;
    text.replace(text.find(from), std::string(from).size(), to);
    return ErrorIn(text);
  };
  EXPECT_TRUE(Has(with("\"8-1\"", "\"7-7\""), "course.toml:5: lesson"));
  EXPECT_TRUE(Has(with("\"gdb\"", "\"dance\""), "kind: expected gdb"));
  EXPECT_TRUE(Has(with("minutes = 10", "minutes = 0"), "minutes"));
  EXPECT_TRUE(Has(with(", \"d\"]", "]"), "hints: expected 4"));
  EXPECT_TRUE(Has(with("title", "titel"), "titel"));
  EXPECT_TRUE(
      Has(with("minutes", "needs = [\"two\"]\nminutes"), "needs: expected"));
  EXPECT_TRUE(Has(with("program = \"day09_three_pass\"", ""), "program"));
}

TEST(WorkFolderTest, RemembersAndKeepsWhatIsThere) {
  const TempDir dir;
  const WorkFolder work(dir / "work");
  EXPECT_EQ(work.Read().seed, 0u);
  EXPECT_FALSE(std::filesystem::exists(dir / "work"));  // reading makes nothing
  const auto seed =
      work.Update([](Progress& p) {
            p.exercises["one"] = {.folder = "01_one",
                                  .started = "2026-01-01T00:00:00Z"};
          })
          .seed;
  EXPECT_GE(seed, 1u);
  work.Update([](Progress& p) {
    p.exercises.at("one").passed = "2026-01-01T00:10:00Z";
    p.exercises.at("one").scores["mass"] = 0.5;
  });
  const Progress progress = work.Read();
  EXPECT_EQ(progress.seed, seed);
  const ExerciseRecord& one = *progress.Find("one");
  EXPECT_EQ(SecondsBetween(one.started, one.passed), 600);
  EXPECT_EQ(one.scores.at("mass"), 0.5);
  EXPECT_EQ(progress.Find("two"), nullptr);
}

TEST(WorkFolderTest, StudentsHaveSeedsOfTheirOwn) {
  const TempDir dir;
  const auto seed = [&](const char* name) {
    return WorkFolder(dir / name).Update([](Progress&) {}).seed;
  };
  const auto a = seed("a"), b = seed("b"), c = seed("c");
  EXPECT_FALSE(a == b && b == c);  // one in 10^12 by chance
}

TEST(WorkFolderTest, ADamagedFileIsNotReplaced) {
  const TempDir dir;
  const WorkFolder work(dir.path());
  for (const char* text :
       {"", "{", "[]", "{\"format\": 2, \"student_seed\": 1}",
        "{\"format\": 1, \"student_seed\": 0, \"exercises\": {}}",
        "{\"format\": 1, \"student_seed\": 7, \"exercises\": {\"one\": "
        "{\"folder\": \"../../etc\", \"started\": \"x\"}}}",
        "{\"format\": 1, \"student_seed\": 7, \"exercises\": {\"one\": "
        "{\"folder\": \"progress.json\", \"started\": \"x\"}}}",
        "{\"format\": 1, \"student_seed\": 7, \"exercises\": {\"one\": "
        "{\"folder\": \"01_a/../../b\", \"started\": \"x\"}}}"}) {
    WriteFile(dir / "progress.json", text);
    const std::string error = ErrorOf([&] { work.Update([](Progress&) {}); });
    EXPECT_TRUE(Has(error, "progress.json")) << text;
    EXPECT_TRUE(Has(error, "delete it to begin anew")) << text;
    EXPECT_EQ(ReadFile(dir / "progress.json"), text);
  }
}

TEST(WorkFolderTest, NoUpdateIsLost) {
  const TempDir dir;
  const WorkFolder work(dir.path());
  work.Update([](Progress& p) {
    p.exercises["one"] = {.folder = "01_one", .started = "now"};
  });
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int n = 0; n < 25; ++n) {
        work.Update([](Progress& p) { ++p.exercises.at("one").checks; });
      }
    });
  }
  threads.clear();
  EXPECT_EQ(work.Read().Find("one")->checks, 100);
}

TEST(WorkFolderTest, StartersNeverReplaceAFile) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "course/01_one");
  WriteFile(dir / "course/01_one/answers.toml", "a = \"\"\n");
  Course course{
      .root = dir / "course", .lessons = {}, .exercises = {}, .concepts = {}};
  const Exercise e{.number = 1, .name = "one", .folder = "01_one"};
  const ExerciseRecord record{.folder = "01_one", .started = "now"};
  const WorkFolder work(dir / "work");
  work.CopyStarters(course, e, record);
  WriteFile(work.Of(record) / "answers.toml", "a = 3\n");
  // The course changes, and is started again.
  WriteFile(dir / "course/01_one/answers.toml", "b = \"\"\n");
  work.CopyStarters(course, e, record);
  EXPECT_EQ(ReadFile(work.Of(record) / "answers.toml"), "a = 3\n");
  EXPECT_EQ(ReadFile(work.StartersOf(record) / "answers.toml"), "a = \"\"\n");
  // Reset: the old files are in the backup, the new starter is here.
  const auto backup = work.BackUp(record);
  work.CopyStarters(course, e, record);
  EXPECT_EQ(ReadFile(backup / "answers.toml"), "a = 3\n");
  EXPECT_EQ(ReadFile(work.Of(record) / "answers.toml"), "b = \"\"\n");
}

// --- The program
// --------------------------------------------------------------

class ExercisesProgram : public testing::Test {
 protected:
  ExercisesProgram() { std::filesystem::create_directory(dir_ / "work"); }
  bool WorkIsEmpty() { return std::filesystem::is_empty(dir_ / "work"); }
  ProgramRun Run(const std::string& arguments) {
    std::string verb = arguments.substr(0, arguments.find(' '));
    return RunCommand(
        StrCat(KVLAB_EXERCISES, " ", verb, " --work ",
               Quoted((dir_ / "work").string()), arguments.substr(verb.size())),
        dir_.path());
  }
  testing::AssertionResult Refuses(const std::string& arguments,
                                   const std::string& part) {
    return FailsWithOneLine(Run(arguments), 2, "lab_exercises", part);
  }
  TempDir dir_;
};

TEST_F(ExercisesProgram, ListsWithoutMakingAnything) {
  const ProgramRun run = Run("list");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(Has(run.out, "next: ./lab exercises start 1"));
  EXPECT_TRUE(WorkIsEmpty());
}

TEST_F(ExercisesProgram, AFolderThatIsNotThereIsNoEmptyReport) {
  std::filesystem::remove(dir_ / "work");
  for (const char* verb : {"list", "report", "check 1", "hint 1"}) {
    EXPECT_TRUE(Refuses(verb, "no such folder")) << verb;
  }
  WriteFile(dir_ / "work", "a file");
  EXPECT_TRUE(FailsWithOneLine(Run("report"), 1, "lab_exercises", "work"));
  std::filesystem::remove(dir_ / "work");
  EXPECT_EQ(Run("start 4").exit_code, 0);
}

TEST_F(ExercisesProgram, WrongUseIsOneLine) {
  EXPECT_TRUE(Refuses("check 99", "there is no exercise \"99\""));
  EXPECT_TRUE(Refuses("start nonsense", "there is no exercise"));
  EXPECT_TRUE(Refuses("check", "no exercise is started"));
  EXPECT_TRUE(Refuses("hint", "no exercise is started"));
  EXPECT_TRUE(Refuses("hint 1", "not started yet"));
  EXPECT_TRUE(Refuses("reset 1", "not started yet"));
  EXPECT_TRUE(Refuses("reset", "which exercise?"));
  EXPECT_TRUE(Refuses("solution", "which exercise?"));
  EXPECT_TRUE(Refuses("solution 1", "not passed yet"));
  EXPECT_TRUE(Refuses("check 1 --wach", "--wach"));
  EXPECT_TRUE(WorkIsEmpty());
}

TEST_F(ExercisesProgram, AnExerciseFromStartToSolution) {
  const ProgramRun not_started = Run("check 4");
  EXPECT_EQ(not_started.exit_code, 1);
  EXPECT_TRUE(Has(not_started.out, "Not started yet"));

  const ProgramRun start = Run("start 4");
  ASSERT_EQ(start.exit_code, 0) << start.err;
  EXPECT_TRUE(Has(start.out, "Red is expected now"));
  EXPECT_TRUE(Has(start.out, "which you have not passed"));
  const auto folder = dir_ / "work/04_online_softmax";
  EXPECT_TRUE(std::filesystem::exists(folder / "online_softmax.cpp"));
  EXPECT_TRUE(Has(ReadFile(folder / ".vscode/launch.json"),
                  "04_online_softmax/.program/check"));
  EXPECT_TRUE(Has(Run("start 4").out, "as you left them"));

  std::string shown;
  for (int i = 1; i <= 4; ++i) {
    shown = Run("hint 4").out;
    EXPECT_TRUE(Has(shown, StrCat("  ", i, ". ")));
    EXPECT_EQ(shown.find(StrCat("  ", i + 1, ". ")), std::string::npos);
  }
  EXPECT_TRUE(Has(shown, "That was the last"));
  EXPECT_TRUE(Has(Run("list").out, "started, 4 hints"));

  const ProgramRun given_up = Run("solution 4 --give-up");
  EXPECT_EQ(given_up.exit_code, 0) << given_up.err;
  EXPECT_TRUE(Has(Run("list").out, "solution read"));

  WriteFile(folder / "online_softmax.cpp", "mine");
  const ProgramRun reset = Run("reset 4");
  EXPECT_EQ(reset.exit_code, 0) << reset.err;
  EXPECT_NE(ReadFile(folder / "online_softmax.cpp"), "mine");
  bool kept = false;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(dir_ / "work/backup")) {
    kept =
        kept || (entry.is_regular_file() && ReadFile(entry.path()) == "mine");
  }
  EXPECT_TRUE(kept);
}

// --- A machine that cannot
// ------------------------------------------------------

/// A folder for PATH with a gdb that is not allowed to run programs; under qemu
/// it may.
void WriteRefusedGdb(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  WriteFile(folder / "gdb",
            "#!/bin/sh\n"
            "case \"$*\" in *'print(6 * 7)'*) echo 42; exit ;; esac\n"
            "if [ \"$KVLAB_GDB_MODE\" = qemu ]; then\n"
            "  PATH=${PATH#*:}\n"
            "  exec gdb \"$@\"\n"
            "fi\n"
            "echo 'warning: ptrace: Operation not permitted' >&2\n"
            "exit 1\n");
  std::filesystem::permissions(folder / "gdb",
                               std::filesystem::perms::owner_all);
}

TEST_F(ExercisesProgram, WherePtraceIsRefusedItGoesThroughQemu) {
  if (std::system("command -v qemu-x86_64-static qemu-x86_64 >/dev/null") !=
      0) {
    KVLAB_SKIP_OR_FAIL("qemu_x86_64", "there is no qemu-x86_64");
  }
  WriteRefusedGdb(dir_ / "bin");
  ASSERT_EQ(Run("start 2").exit_code, 0);
  const std::string path =
      StrCat("PATH=", Quoted((dir_ / "bin").string()), ":$PATH ");
  const ProgramRun run =
      RunCommand(StrCat(path, KVLAB_EXERCISES, " check 2 --work ",
                        Quoted((dir_ / "work").string())),
                 dir_.path());
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(Has(run.out, "missing: no answer yet")) << run.err;
}

TEST_F(ExercisesProgram, WithoutGdbItSaysSo) {
  ASSERT_EQ(Run("start 2").exit_code, 0);
  // What the check needs but gdb.
  std::filesystem::create_directories(dir_ / "bin");
  for (const char* tool : {"timeout", "sha256sum"}) {
    std::filesystem::create_symlink(StrCat("/usr/bin/", tool),
                                    dir_ / "bin" / tool);
  }
  const std::string path =
      StrCat("PATH=", Quoted((dir_ / "bin").string()), " ");
  const std::string work = StrCat(" --work ", Quoted((dir_ / "work").string()));
  const ProgramRun check =
      RunCommand(StrCat(path, KVLAB_EXERCISES, " check 2", work), dir_.path());
  EXPECT_EQ(check.exit_code, 1);
  EXPECT_TRUE(Has(check.out, "no fault of your answer: gdb is not installed"))
      << check.err;
  EXPECT_TRUE(FailsWithOneLine(
      RunCommand(StrCat(path, KVLAB_EXERCISES, " start 3", work), dir_.path()),
      1, "lab_exercises", "gdb is not installed"));
}

TEST_F(ExercisesProgram, Reports) {
  ASSERT_EQ(Run("start 4").exit_code, 0);
  const ProgramRun run = Run("report --json");
  EXPECT_EQ(run.exit_code, 0) << run.err;
  const auto json = nlohmann::json::parse(run.out);
  EXPECT_GE(json["student_seed"].get<int>(), 1);
  const auto& row = json["exercises"][3];
  EXPECT_EQ(row["name"], "online_softmax");
  EXPECT_EQ(row["result"], "started");
  EXPECT_EQ(row["files"]["online_softmax.cpp"].get<std::string>().size(), 64u);
  EXPECT_EQ(json["exercises"][0]["result"], "not_started");
}

}  // namespace
}  // namespace kvlab
