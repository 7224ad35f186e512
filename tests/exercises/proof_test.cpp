// That the checks check. Of every exercise, for two students: the starter fails
// for the reason that its text names, the solution passes, wrong answers are
// refused with the right words. With KVLAB_EXERCISES_MODE=aarch64 what is done
// in gdb runs on the programs for 64-bit ARM, for one student.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>

#include "common/lab/child_process.h"
#include "exercises/checker/check.h"
#include "exercises/checker/yours.h"
#include "tests/loader/temp_dir.h"
#include "tests/require.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t kSeeds[] = {4'217, 650'123};

const Course& TheCourse() {
  static const Course course =
      ReadCourse(fs::path(KVLAB_SOURCE_DIR) / "exercises");
  return course;
}

bool OnArm() {
  const char* mode = std::getenv("KVLAB_EXERCISES_MODE");
  return mode != nullptr && std::string(mode) == "aarch64";
}

/// A student with a seed who has begun an exercise.
class Student {
 public:
  Student(const Exercise& exercise, std::uint32_t seed)
      : exercise_(exercise), work_(dir_ / "work") {
    progress_ = work_.Update([&](Progress& p) {
      p.seed = seed;
      p.exercises[exercise.name] = {.folder = exercise.folder,
                                    .started = NowUtc()};
    });
    work_.CopyStarters(TheCourse(), exercise, Record());
  }

  const ExerciseRecord& Record() const {
    return *progress_.Find(exercise_.name);
  }
  fs::path Folder() const { return work_.Of(Record()); }
  fs::path File() const { return Folder() / exercise_.source; }

  CheckResult Check() {
    return CheckExercise(TheCourse(), exercise_, places_, work_, progress_);
  }
  /// Made once for each exercise and seed, unless they judge an answer.
  const std::vector<Fact>& Facts() {
    static std::map<std::string, std::vector<Fact>> known;
    std::vector<Fact>& facts =
        known[StrCat(exercise_.name, " ", progress_.seed)];
    if (facts.empty() || std::ranges::any_of(facts, [](const Fact& fact) {
          return fact.ok.has_value();
        })) {
      facts = ReplayFacts(TheCourse(), exercise_, places_, Folder(),
                          progress_.seed);
    }
    return facts;
  }
  std::vector<Judgement> Judged() {
    return Judge(Facts(), ReadAnswers(Folder() / "answers.toml"));
  }

  /// Types the solution's commands into gdb, as one would after `debug`.
  std::string Session() {
    SetGdbEnvironment(places_, Folder(), progress_.seed, "");
    std::vector<std::string> command = GdbCommand(places_);
    command.insert(
        command.end(),
        {"-batch", "-x", TheCourse().SolutionFolder(exercise_) / "session.gdb",
         "--args", places_.bin() / exercise_.program});
    for (const auto& word : ArgumentsOf(exercise_, progress_.seed)) {
      command.push_back(word);
    }
    const auto result = RunChild(command, "");
    return result ? result->out + result->err : "no gdb";
  }

 private:
  const TempDir dir_;
  const Exercise& exercise_;
  WorkFolder work_;
  Progress progress_;
  Places places_{.source = KVLAB_SOURCE_DIR,
                 .build = KVLAB_BINARY_DIR,
                 .mode = OnArm() ? GdbMode::kAarch64 : GdbMode::kNative};
};

/// On ARM only what is done in gdb.
std::vector<const Exercise*> OfKind(bool code) {
  std::vector<const Exercise*> exercises;
  for (const Exercise& e : TheCourse().exercises) {
    if (e.is_code() == code && !(OnArm() && e.kind == ExerciseKind::kExplore)) {
      exercises.push_back(&e);
    }
  }
  return exercises;
}

std::string NameOf(const testing::TestParamInfo<const Exercise*>& info) {
  return info.param->name;
}

// --- Answers
// ------------------------------------------------------------------

class AnswerExercise : public testing::TestWithParam<const Exercise*> {};

/// The answers to `facts`, as answers.toml.
std::string Toml(const std::vector<Fact>& facts) {
  std::string text;
  for (const Fact& fact : facts) {
    if (!fact.ok) text += fact.name + " = " + fact.value.dump() + "\n";
  }
  return text;
}

TEST_P(AnswerExercise, StarterIsUnansweredAndTheSessionAnswersIt) {
  const Places arm{
      .source = {}, .build = KVLAB_BINARY_DIR, .mode = GdbMode::kAarch64};
  if (OnArm() && !fs::exists(arm.bin())) {
    KVLAB_SKIP_OR_FAIL("aarch64_gdb", "there are no programs for 64-bit ARM");
  }
  for (const std::uint32_t seed : kSeeds) {
    Student student(*GetParam(), seed);
    const std::vector<Judgement> before = student.Judged();
    EXPECT_GE(before.size(), 3u) << "at least three questions, please";
    for (const Judgement& j : before) {
      EXPECT_EQ(j.verdict, AnswerVerdict::kMissing) << j.name << ": " << j.text;
    }
    const std::string session = student.Session();
    for (const Judgement& j : student.Judged()) {
      EXPECT_EQ(j.verdict, AnswerVerdict::kRight)
          << j.name << ": " << j.text << "\nThe session:\n"
          << session;
    }
    if (OnArm()) return;  // one student: each run takes ten times as long
    if (seed != kSeeds[0]) continue;
    const CheckResult passed = student.Check();
    EXPECT_EQ(passed.verdict, CheckVerdict::kPassed) << passed.text;
    WriteFile(student.Folder() / "answers.toml", "no = toml = here");
    EXPECT_EQ(student.Check().verdict, CheckVerdict::kUnreadable);
  }
}

/// `text` as one of the words of `of`: not as a part of a longer number.
bool HasToken(const std::string& of, const std::string& text) {
  const auto in_number = [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  };
  for (std::size_t at = of.find(text); at != std::string::npos;
       at = of.find(text, at + 1)) {
    const std::size_t end = at + text.size();
    if ((at == 0 || !in_number(of[at - 1])) &&
        (end == of.size() || !in_number(of[end]))) {
      return true;
    }
  }
  return false;
}

TEST_P(AnswerExercise, WrongAnswersAreRefused) {
  Student student(*GetParam(), kSeeds[0]);
  const std::vector<Fact> facts = student.Facts();
  ASSERT_FALSE(facts.empty());
  /// The verdict on one answer of an answers.toml.
  const auto judge = [&](const std::string& toml, const std::string& name) {
    WriteFile(student.Folder() / "answers.toml", toml);
    const auto judged =
        Judge(facts, ReadAnswers(student.Folder() / "answers.toml"));
    return std::ranges::find(judged, name, &Judgement::name)->verdict;
  };
  for (std::size_t i = 0; i < facts.size(); ++i) {
    const Fact& fact = facts[i];
    if (fact.ok) continue;
    const auto verdict = [&](const nlohmann::json& value) {
      std::vector<Fact> changed = facts;
      changed[i].value = value;
      return judge(Toml(changed), fact.name);
    };
    EXPECT_EQ(verdict(fact.value), AnswerVerdict::kRight) << fact.name;
    EXPECT_EQ(verdict(""), AnswerVerdict::kMissing) << fact.name;
    const bool number = fact.value.is_number();
    EXPECT_EQ(verdict("about ten"), number ? AnswerVerdict::kNotANumber
                                    : fact.value.is_array()
                                        ? AnswerVerdict::kForm
                                        : AnswerVerdict::kWrong)
        << fact.name;
    if (fact.value.is_number_integer()) {
      for (const int off : {-1, 1}) {
        EXPECT_EQ(verdict(fact.value.get<std::int64_t>() + off),
                  AnswerVerdict::kWrong)
            << fact.name;
      }
    } else if (number) {
      const double value = fact.value.get<double>();
      // Digits that a reader would call another number.
      EXPECT_LE(fact.within, 0.01) << fact.name;
      for (const double off : {-0.03, 0.03}) {
        EXPECT_EQ(verdict(value == 0 ? off : value * (1 + off)),
                  AnswerVerdict::kWrong)
            << fact.name;
      }
    } else if (fact.value.is_array() && fact.value.size() > 1 &&
               fact.value.front() != fact.value.back()) {
      nlohmann::json swapped = fact.value;
      std::swap(swapped.front(), swapped.back());
      EXPECT_EQ(verdict(swapped),
                fact.any_order ? AnswerVerdict::kRight : AnswerVerdict::kWrong)
          << fact.name;
    }
    // What a wrong answer is shown leads on, and is not the answer.
    EXPECT_GT(fact.seen.size(), 15u) << fact.name;
    if (number && std::abs(fact.value.get<double>()) >= 10) {
      EXPECT_FALSE(HasToken(fact.seen, fact.value.dump()))
          << fact.name << ": " << fact.seen;
    }
  }
  // Two answers in each other's place.
  for (std::size_t i = 0; i + 1 < facts.size(); ++i) {
    if (facts[i].ok || facts[i + 1].ok ||
        facts[i].value == facts[i + 1].value ||
        facts[i].value.type() != facts[i + 1].value.type()) {
      continue;
    }
    std::vector<Fact> changed = facts;
    std::swap(changed[i].value, changed[i + 1].value);
    for (const std::string& name : {facts[i].name, facts[i + 1].name}) {
      EXPECT_EQ(judge(Toml(changed), name), AnswerVerdict::kSwapped) << name;
    }
  }
}

TEST_P(AnswerExercise, AnotherStudentsAnswersAreWrong) {
  Student a(*GetParam(), kSeeds[0]);
  Student b(*GetParam(), kSeeds[1]);
  const std::vector<Fact> facts = a.Facts();
  WriteFile(b.Folder() / "answers.toml", Toml(facts));
  const bool judges = std::ranges::any_of(
      facts, [](const Fact& fact) { return fact.ok.has_value(); });
  EXPECT_TRUE(judges || std::ranges::any_of(b.Judged(),
                                            [](const auto& j) {
                                              return j.verdict !=
                                                     AnswerVerdict::kRight;
                                            }))
      << "copied answers would pass";
}

INSTANTIATE_TEST_SUITE_P(Exercises, AnswerExercise,
                         testing::ValuesIn(OfKind(false)), NameOf);

// --- Code
// ---------------------------------------------------------------------

class CodeExercise : public testing::TestWithParam<const Exercise*> {};

std::string FirstFailure(const CheckResult& result) {
  for (const CodeTest& test : result.tests) {
    if (!test.failure.empty()) return test.name;
  }
  return "";
}

TEST_P(CodeExercise, StarterFailsAsItsTextSaysAndTheSolutionPasses) {
  const Exercise& e = *GetParam();
  Student student(e, kSeeds[0]);
  const CheckResult starter = student.Check();
  EXPECT_EQ(starter.verdict, CheckVerdict::kTestsFailed) << starter.text;
  EXPECT_EQ(FirstFailure(starter), e.starter_fails) << starter.text;
  EXPECT_EQ(starter.text.find("warns"), std::string::npos) << starter.text;
  EXPECT_TRUE(Has(ReadFile(TheCourse().Folder(e) / "README.md"),
                  "`" + e.starter_fails + "`"));

  const std::string solution =
      ReadFile(TheCourse().SolutionFolder(e) / e.source);
  WriteFile(student.File(), solution);
  const CheckResult solved = student.Check();
  EXPECT_EQ(solved.verdict, CheckVerdict::kPassed) << solved.text;
  EXPECT_EQ(solved.text.find("warns"), std::string::npos) << solved.text;

  Student other(e, kSeeds[1]);
  WriteFile(other.File(), solution);
  const CheckResult solved_too = other.Check();
  EXPECT_EQ(solved_too.verdict, CheckVerdict::kPassed) << solved_too.text;
}

TEST_P(CodeExercise, WhatMayNotBeDoneIsSaid) {
  const Exercise& e = *GetParam();
  Student student(e, kSeeds[0]);
  const std::string starter = ReadFile(student.File());
  WriteFile(student.File(), "int x;\n" + starter);
  EXPECT_EQ(student.Check().verdict, CheckVerdict::kNotYours);

  std::string inside = starter;
  const std::string marker = "// [yours]\n";
  ASSERT_NE(inside.find(marker), std::string::npos);
  const auto insert = [&](const std::string& line) {
    inside = starter;
    inside.insert(inside.find(marker) + marker.size(), line + "\n");
    WriteFile(student.File(), inside);
    return student.Check();
  };
  for (const std::string& word : e.forbidden) {
    const bool is_file = word.find('/') != std::string::npos;
    EXPECT_EQ(insert(is_file ? "#include \"" + word + "\"" : word).verdict,
              CheckVerdict::kNotYours)
        << word;
  }
  fs::remove(student.File());
  const CheckResult gone = student.Check();
  EXPECT_EQ(gone.verdict, CheckVerdict::kUnreadable);
  EXPECT_TRUE(Has(gone.text, "reset"));
}

INSTANTIATE_TEST_SUITE_P(Exercises, CodeExercise,
                         testing::ValuesIn(OfKind(true)), NameOf);

// --- What any code can do
// ------------------------------------------------------

class StudentsCode : public testing::Test {
 protected:
  static const Exercise& Online() { return TheCourse().Find("online_softmax"); }
  /// The starter with `code` at the start of what is the student's.
  CheckResult CheckWith(const std::string& code) {
    return CheckWith(code,
                     ReadFile(TheCourse().Folder(Online()) / Online().source));
  }
  CheckResult CheckWith(const std::string& code, std::string text) {
    Student student(Online(), kSeeds[0]);
    const std::string marker = "// [yours]\n";
    text.insert(text.find(marker) + marker.size(), code + "\n");
    WriteFile(student.File(), text);
    return student.Check();
  }
};

TEST_F(StudentsCode, ThatDoesNotCompileIsShownWithItsLines) {
  const CheckResult result = CheckWith("  this is no code;");
  EXPECT_EQ(result.verdict, CheckVerdict::kBuildError);
  EXPECT_TRUE(Has(result.text, "04_online_softmax/online_softmax.cpp:"));
  EXPECT_TRUE(Has(result.text, "this is no code"));
}

TEST_F(StudentsCode, WarningsAreShownAndStopNothing) {
  const CheckResult result = CheckWith("  int never_used = 1;");
  EXPECT_EQ(result.verdict, CheckVerdict::kTestsFailed);
  EXPECT_TRUE(Has(result.text, "The compiler warns"));
  EXPECT_TRUE(Has(result.text, "never_used"));
}

TEST_F(StudentsCode, ThatCrashesFailsItsTest) {
  const CheckResult result =
      CheckWith("  volatile int* nowhere = nullptr; *nowhere = 1;");
  EXPECT_EQ(result.verdict, CheckVerdict::kTestsFailed);
  EXPECT_TRUE(Has(result.text, "crashed here (signal 11)"));
}

TEST_F(StudentsCode, IsRunWithASecondSeed) {
  const std::string code = StrCat(
      "  char words[999] = {};\n"
      "  std::FILE* file = std::fopen(\"/proc/self/cmdline\", \"r\");\n"
      "  const auto size = std::fread(words, 1, 999, file);\n"
      "  std::fclose(file);\n"
      "  if (std::string(words, size).find(\"",
      SecondSeed(kSeeds[0]), "\") < size) __builtin_trap();");
  const CheckResult result = CheckWith(
      code, ReadFile(TheCourse().SolutionFolder(Online()) / Online().source));
  EXPECT_EQ(result.verdict, CheckVerdict::kTestsFailed) << result.text;
  EXPECT_TRUE(Has(result.text, "with a second seed"));
}

TEST_F(StudentsCode, ThatEndsTheProgramDoesNotPass) {
  const std::string solution =
      ReadFile(TheCourse().SolutionFolder(Online()) / Online().source);
  for (const char* code :
       {"  std::exit(0);", "  std::_Exit(0);",
        "  struct Last { ~Last() { std::_Exit(1); } }; static Last last;",
        "  struct FailedExpectation { std::string message; };\n"
        "  throw FailedExpectation{};"}) {
    EXPECT_EQ(CheckWith(code, solution).verdict, CheckVerdict::kTestsFailed)
        << code;
  }
}

TEST_F(StudentsCode, WhatItPrintsDecidesNothing) {
  const std::string solution =
      ReadFile(TheCourse().SolutionFolder(Online()) / Online().source);
  const std::string print =
      "  std::printf(\"x {\\\"test\\\":\\\"a\\\",\\\"failure\\\":null} \");";
  const CheckResult right = CheckWith(print, solution);
  EXPECT_EQ(right.verdict, CheckVerdict::kPassed) << right.text;
  EXPECT_EQ(CheckWith(print).verdict, CheckVerdict::kTestsFailed);
  const CheckResult much =
      CheckWith("  for (;;) std::printf(\"%s\\n\", __FILE__);");
  EXPECT_EQ(much.verdict, CheckVerdict::kTestsFailed);
  EXPECT_TRUE(Has(much.text, "printed more than 16 MB"));
  EXPECT_LT(much.text.size(), 20'000u);
}

TEST_F(StudentsCode, ThatLacksTheFunctionIsAtFaultItself) {
  const Exercise& e = TheCourse().Find("tie_rule");
  Student student(e, kSeeds[0]);
  std::string text = ReadFile(student.File());
  const std::size_t begin = text.find("// [yours]\n") + 11;
  text.erase(begin, text.rfind("// [yours]") - begin);
  WriteFile(student.File(), text);
  const CheckResult result = student.Check();
  EXPECT_EQ(result.verdict, CheckVerdict::kBuildError) << result.text;
  EXPECT_TRUE(Has(result.text, "is missing, or has other parameters"));
}

TEST_F(StudentsCode, ThatCallsItselfAnotherFileIsItsOwn) {
  EXPECT_EQ(CheckWith("#line 1 \"other.cpp\"\n  no code;").verdict,
            CheckVerdict::kBuildError);
}

TEST_F(StudentsCode, WhatItPrintsIsShown) {
  const CheckResult result =
      CheckWith("  __builtin_printf(\"M is {not JSON\");");
  EXPECT_TRUE(Has(result.text, "Your code printed"));
  EXPECT_TRUE(Has(result.text, "M is {not JSON"));
}

TEST_F(StudentsCode, ThatNeverEndsIsStopped) {
  const CheckResult result = CheckWith("  for (;;) asm volatile(\"\");");
  EXPECT_EQ(result.verdict, CheckVerdict::kTestsFailed);
  EXPECT_TRUE(Has(result.text, "did not end in 20 seconds"));
}

}  // namespace
}  // namespace kvlab
