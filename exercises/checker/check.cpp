#include "exercises/checker/check.h"

#include <algorithm>
#include <array>
#include <functional>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/lab/text_table.h"
#include "common/loader/json.h"
#include "exercises/checker/yours.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSourceBytes = 1'000'000;
constexpr std::size_t kColumns = 88;

/// A label of eight columns and a text that is wrapped beside it.
std::string Row(const std::string& label, const std::string& text) {
  std::string rows = Wrapped(text, kColumns, 12);
  rows.replace(2, label.size(), label);
  return rows;
}

std::string Unreadable(const Error& error, const Exercise& exercise) {
  return StrCat("  ", error.what(), " (./lab exercises reset ", exercise.number,
                " brings the starter back and keeps what is there)\n");
}

CheckResult CheckAnswers(const Course& course, const Exercise& exercise,
                         Places& places, const fs::path& folder,
                         std::uint32_t seed) {
  std::vector<Answer> answers;
  try {
    answers = ReadAnswers(folder / "answers.toml");
  } catch (const Error& error) {
    return {CheckVerdict::kUnreadable, Unreadable(error, exercise)};
  }
  CheckResult result;
  result.judgements =
      Judge(ReplayFacts(course, exercise, places, folder, seed), answers);
  std::size_t right = 0, missing = 0;
  for (const Judgement& j : result.judgements) {
    const bool is_right = j.verdict == AnswerVerdict::kRight;
    right += is_right ? 1 : 0;
    missing += j.verdict == AnswerVerdict::kMissing ? 1 : 0;
    result.text +=
        is_right ? Row("right", j.name) : Row("", StrCat(j.name, ": ", j.text));
  }
  const std::size_t all = result.judgements.size();
  result.verdict = right == all             ? CheckVerdict::kPassed
                   : right + missing == all ? CheckVerdict::kUnanswered
                                            : CheckVerdict::kWrong;
  result.text += StrCat("\n  ", right, " of ", all, " right\n");
  return result;
}

/// The scoreboard: a row for whoever has scores, "who: what" by name, the
/// student's without a who; the best by the first of them on top.
std::string ScoreTable(const std::map<std::string, double>& scores,
                       const std::map<std::string, double>& best) {
  std::map<std::string, std::map<std::string, double>> rows;
  for (const auto& [name, value] : scores) {
    const std::size_t colon = name.find(": ");
    const bool own = colon == std::string::npos;
    rows[own ? "yours now" : name.substr(0, colon)]
        [own ? name : name.substr(colon + 2)] = value;
  }
  if (!best.empty()) rows["your best"] = best;
  const std::map<std::string, double>& columns = rows["yours now"];
  std::vector<std::string> cells = {""};
  for (const auto& [column, value] : columns) cells.push_back(column);
  TextTable table("l" + std::string(columns.size(), 'r'));
  table.Add(cells);
  std::vector<std::pair<std::string, std::map<std::string, double>>> sorted(
      rows.begin(), rows.end());
  std::ranges::stable_sort(sorted, std::ranges::greater(), [](const auto& row) {
    return row.second.empty() ? 0.0 : row.second.begin()->second;
  });
  for (const auto& [who, values] : sorted) {
    cells = {who};
    for (const auto& [column, value] : columns) {
      const auto it = values.find(column);
      cells.push_back(it == values.end() ? "" : Fixed(it->second, 3));
    }
    table.Add(cells);
  }
  return "\n" + table.Text();
}

/// The text of a run's tests.
std::string TestsText(const CodeRun& run) {
  std::string text;
  for (const CodeTest& test : run.tests) {
    text += test.failure.empty()
                ? Row("passed", test.name)
                : Row("FAILED",
                      StrCat(test.name, ": ", Printable(test.failure, 2000),
                             test.lesson.empty()
                                 ? ""
                                 : StrCat(" (read ", test.lesson, ")")));
  }
  if (!run.printed.empty()) text += "\n  Your code printed:\n" + run.printed;
  return text;
}

CheckResult CheckCode(const Exercise& exercise, const Places& places,
                      const fs::path& folder, const fs::path& starters,
                      std::uint32_t seed,
                      const std::map<std::string, double>& best) {
  const fs::path file = folder / exercise.source;
  std::string starter, text;
  try {
    starter = ReadSmallFile(starters / exercise.source, kMaxSourceBytes);
    text = ReadSmallFile(file, kMaxSourceBytes);
  } catch (const Error& error) {
    return {CheckVerdict::kUnreadable, Unreadable(error, exercise)};
  }
  std::vector<std::string> forbidden = exercise.forbidden;
  forbidden.emplace_back("exercises/solutions");
  for (const auto& fault :
       {ChangedOutsideYours(starter, text), ForbiddenWord(text, forbidden)}) {
    if (fault) {
      return {CheckVerdict::kNotYours,
              StrCat("  ", PathText(file), ":", fault->line, ": ", fault->text,
                     "\n")};
    }
  }
  const fs::path program = folder / kCodeProgram;
  const BuildResult build = BuildCode(exercise, places, file, program);
  if (!build.ok) {
    return {CheckVerdict::kBuildError,
            "  Your file does not compile:\n\n" + build.messages};
  }
  CheckResult result;
  if (!build.messages.empty()) {
    result.text = "  The compiler warns:\n\n" + build.messages + "\n";
  }
  for (const std::uint32_t s : {seed, SecondSeed(seed)}) {
    const CodeRun run = RunCode(program, s);
    result.tests = run.tests;
    result.scores = run.scores;
    if (run.passed() && s == seed) continue;
    result.text += TestsText(run);
    if (!run.scores.empty()) result.text += ScoreTable(run.scores, best);
    if (!run.passed()) {
      result.verdict = CheckVerdict::kTestsFailed;
      if (s != seed) result.text += "\n  (with a second seed)\n";
      const auto failed = std::ranges::find_if(
          run.tests,
          [](const CodeTest& test) { return !test.failure.empty(); });
      if (failed != run.tests.end()) {
        result.text +=
            StrCat("\n  In the debugger: ./lab exercises debug ",
                   exercise.number, " --only \"", failed->name, "\"\n");
      }
      return result;
    }
  }
  return result;
}

}  // namespace

std::uint32_t SecondSeed(std::uint32_t seed) { return seed + 1'000'003; }

CheckResult CheckExercise(const Course& course, const Exercise& exercise,
                          Places& places, const WorkFolder& work,
                          const Progress& progress) {
  const ExerciseRecord* record = progress.Find(exercise.name);
  if (record == nullptr) {
    return {CheckVerdict::kNotStarted,
            StrCat("  Not started yet: ./lab exercises start ", exercise.number,
                   "\n")};
  }
  const fs::path folder = work.Of(*record);
  try {
    return exercise.is_code()
               ? CheckCode(exercise, places, folder, work.StartersOf(*record),
                           progress.seed, record->scores)
               : CheckAnswers(course, exercise, places, folder, progress.seed);
  } catch (const EnvironmentFault& fault) {
    return {CheckVerdict::kEnvironment,
            StrCat("  It cannot be checked on this machine, which is no fault "
                   "of your answer: ",
                   fault.what(), "\n")};
  }
}

}  // namespace kvlab
