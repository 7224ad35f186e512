/// \file
/// The program behind `./lab exercises`: what there is to do, the student's
/// copies, checks, hints, solutions, and a report for teachers.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "common/base/text.h"
#include "common/lab/cli.h"
#include "common/lab/interrupt.h"
#include "common/lab/sha256.h"
#include "common/lab/text_table.h"
#include "common/loader/json.h"
#include "common/loader/output_file.h"
#include "exercises/checker/check.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;

/// How often --watch looks at the files.
constexpr auto kWatchEvery = std::chrono::milliseconds(300);

constexpr char kOwnWork[] = KVLAB_SOURCE_DIR "/exercises/work";

struct Options {
  std::string which;  ///< number or name; empty: the one at hand
  std::string only;   ///< debug: the test of code to run
  std::string work = kOwnWork;
  bool aarch64 = false;
  bool watch = false;
  bool give_up = false;
  bool json = false;
};

/// A path as a student would type it where he is.
std::string Shown(const fs::path& path) {
  std::error_code error;
  const fs::path relative = fs::proximate(path, error);
  return PathText(error || relative.native().starts_with("../..") ? path
                                                                  : relative);
}

std::string ReadText(const fs::path& file) {
  return ReadSmallFile(file, 1'000'000);
}

class Exercises {
 public:
  /// `new_work`: the work folder need not be there yet.
  Exercises(const Options& options, bool new_work)
      : o_(options),
        course_(ReadCourse(fs::path(KVLAB_SOURCE_DIR) / "exercises")),
        work_(fs::path(options.work)),
        places_{
            .source = KVLAB_SOURCE_DIR,
            .build = KVLAB_BINARY_DIR,
            .mode = options.aarch64 ? GdbMode::kAarch64 : GdbMode::kNative} {
    if (o_.work != kOwnWork && !new_work && !HasEntry(work_.path())) {
      FailUsage(PathText(work_.path()), ": no such folder");
    }
  }

  int List() const {
    const Progress progress = work_.Read();
    TextTable table("rllrl");
    table.Add({"", "exercise", "lesson", "min", ""});
    std::size_t passed = 0;
    int minutes = 0;
    for (const Exercise& e : course_.exercises) {
      const ExerciseRecord* record = progress.Find(e.name);
      const bool done = record != nullptr && !record->passed.empty();
      passed += done ? 1 : 0;
      minutes += done ? 0 : e.minutes;
      table.Add({std::to_string(e.number),
                 StrCat(e.title, e.is_code() ? " (code)" : ""), e.lesson,
                 std::to_string(e.minutes), StatusText(record)});
    }
    std::cout << table.Text() << "\n  " << passed << " of "
              << course_.exercises.size() << " passed";
    if (minutes > 0) {
      std::cout << "; the rest takes about " << (minutes + 30) / 60 << " hours";
    }
    std::cout << "\n";
    if (progress.seed != 0) {
      std::cout << "  your runs have " << OwnOptions(progress.seed) << "\n";
    }
    if (const Exercise* next = Next(progress)) {
      std::cout << "  next: "
                << Lab(StrCat(progress.Find(next->name) == nullptr ? "start "
                                                                   : "check ",
                              next->number))
                << "\n";
    }
    return kExitDone;
  }

  int Start() {
    Progress progress = work_.Read();
    const Exercise& e = o_.which.empty() ? RequireNext(progress) : Chosen();
    if (!e.is_code()) RequireTools();
    bool begun = false;
    progress = work_.Update([&](Progress& p) {
      begun = p.exercises.try_emplace(e.name, NewRecord(e)).second;
    });
    const ExerciseRecord& record = *progress.Find(e.name);
    work_.CopyStarters(course_, e, record);
    WriteLaunch(e, record, progress.seed);

    std::cout << Title(e) << '\n';
    for (const std::string& need : e.needs) {
      const ExerciseRecord* before = progress.Find(need);
      if (before == nullptr || before->passed.empty()) {
        std::cout << "  It builds on exercise " << course_.Find(need).number
                  << ", which you have not passed.\n";
      }
    }
    TextTable table("ll");
    table.Add({"lesson", e.read});
    table.Add({"task", Shown(course_.Folder(e) / "README.md")});
    for (const auto& entry : fs::directory_iterator(course_.Folder(e))) {
      if (entry.path().extension() == ".h") {
        table.Add({"declared in", Shown(entry.path())});
      }
    }
    for (const std::string& name : course_.StarterFiles(e)) {
      table.Add({"you write in", Shown(work_.Of(record) / name)});
    }
    if (!e.is_code()) {
      table.Add({"your runs have", OwnOptions(progress.seed)});
    }
    table.Add({e.is_code() ? "debug your code" : "look with gdb",
               Lab(StrCat("debug ", e.number))});
    table.Add({"check", StrCat(Lab(StrCat("check ", e.number)),
                               "   (--watch: after every change)")});
    table.Add({"stuck?", Lab(StrCat("hint ", e.number))});
    std::cout << table.Text() << '\n';
    if (!begun) {
      std::cout << "  Started before; your files are as you left them.\n";
    } else if (e.is_code()) {
      std::cout << "  Red is expected now: your file compiles, and the check \""
                << e.starter_fails << "\" fails until you have written it.\n";
    } else {
      std::cout << "  Red is expected now: no question is answered yet.\n";
    }
    return kExitDone;
  }

  int Check() {
    const Exercise& e = o_.which.empty() ? AtHand() : Chosen();
    if (!o_.watch) return CheckOnce(e) ? kExitDone : kExitFailed;
    const ExerciseRecord record = Started(e);
    for (;;) {
      const auto before = Times(e, record);
      if (CheckOnce(e)) return kExitDone;
      std::cout << "\n  Waiting for a change of your file (Ctrl-C ends)."
                << std::endl;
      while (Times(e, record) == before) {
        CheckInterrupted();
        std::this_thread::sleep_for(kWatchEvery);
      }
    }
  }

  int Hint() {
    const Exercise& e = o_.which.empty() ? AtHand() : Chosen();
    Started(e);
    const Progress progress = work_.Update([&](Progress& p) {
      int& hints = StillThere(p, e).hints;
      hints = std::min(hints + 1, static_cast<int>(e.hints.size()));
    });
    const int shown = progress.Find(e.name)->hints;
    std::cout << Title(e) << '\n';
    for (int i = 0; i < shown; ++i) {
      std::cout << Wrapped(StrCat(i + 1, ". ", e.hints[i]), 80, 2);
    }
    const auto left = e.hints.size() - static_cast<std::size_t>(shown);
    std::cout << '\n'
              << (left > 0 ? StrCat("  ", left, " more: the same command again")
                           : StrCat("  That was the last. The whole way: ",
                                    Lab(StrCat("solution ", e.number)),
                                    " --give-up"))
              << '\n';
    return kExitDone;
  }

  int Reset() {
    const Exercise& e = Chosen();
    const ExerciseRecord record = Started(e);
    fs::path backup;
    if (HasEntry(work_.Of(record))) backup = work_.BackUp(record);
    work_.CopyStarters(course_, e, record);
    WriteLaunch(e, record, work_.Read().seed);
    std::cout << Title(e) << '\n';
    if (!backup.empty()) {
      std::cout << "  What you had is in " << Shown(backup) << '\n';
    }
    std::cout << "  A fresh start is in " << Shown(work_.Of(record)) << '\n';
    return kExitDone;
  }

  int Solution() {
    const Exercise& e = Chosen();
    const Progress progress = work_.Read();
    const ExerciseRecord* record = progress.Find(e.name);
    const bool passed = record != nullptr && !record->passed.empty();
    if (!passed && !o_.give_up) {
      FailUsage("exercise ", e.number,
                " is not passed yet; to read its solution all the same: ",
                Lab(StrCat("solution ", e.number)), " --give-up");
    }
    if (!passed) {
      work_.Update([&](Progress& p) {
        p.exercises.try_emplace(e.name, NewRecord(e)).first->second.gave_up =
            true;
      });
    }
    std::cout << ForTerminal(ReadText(course_.SolutionFolder(e) / "README.md"))
              << "\n  The files: " << Shown(course_.SolutionFolder(e)) << '\n';
    return kExitDone;
  }

  /// Becomes gdb; returns only if that fails.
  int Debug() {
    const Exercise& e = o_.which.empty() ? AtHand() : Chosen();
    const ExerciseRecord record = Started(e);
    const std::uint32_t seed = work_.Read().seed;
    RequireTools();
    SetGdbEnvironment(places_, work_.Of(record), seed, "");
    std::vector<std::string> command = GdbCommand(places_);
    command.emplace_back("--args");
    if (e.is_code()) {
      const fs::path file = work_.Of(record) / e.source;
      const fs::path program = work_.Of(record) / kCodeProgram;
      const BuildResult build = BuildCode(e, places_, file, program);
      if (!build.ok) {
        std::cerr << build.messages;
        Fail(Shown(file), ": does not compile");
      }
      command.push_back(program);
      command.insert(command.end(), {"--seed", std::to_string(seed)});
      if (!o_.only.empty()) {
        command.insert(command.end(), {"--only", o_.only});
      }
    } else {
      if (!o_.only.empty()) FailUsage("--only is for exercises in code");
      command.push_back(places_.bin() / e.program);
      for (const std::string& word : ArgumentsOf(e, seed)) {
        command.push_back(word);
      }
    }
    std::vector<char*> words;
    for (std::string& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
    Fail(command[0],
         ": cannot be run: ", std::generic_category().message(errno));
  }

  int Report() const {
    const Progress progress = work_.Read();
    nlohmann::ordered_json json = {{"program", "lab_exercises"},
                                   {"version", Version()},
                                   {"student_seed", nullptr},
                                   {"exercises", nlohmann::json::array()}};
    if (progress.seed != 0) json["student_seed"] = progress.seed;
    for (const Exercise& e : course_.exercises) {
      nlohmann::ordered_json row = {{"number", e.number},
                                    {"name", e.name},
                                    {"lesson", e.lesson},
                                    {"kind", KindName(e.kind)},
                                    {"result", "not_started"}};
      if (const ExerciseRecord* record = progress.Find(e.name)) {
        const bool passed = !record->passed.empty();
        row["result"] = passed ? "passed" : "started";
        row["started"] = record->started;
        if (passed) {
          row["passed"] = record->passed;
          row["seconds"] = SecondsBetween(record->started, record->passed);
        }
        row["checks"] = record->checks;
        row["hints"] = record->hints;
        row["gave_up"] = record->gave_up;
        if (!record->scores.empty()) row["scores"] = record->scores;
        for (const std::string& name : course_.StarterFiles(e)) {
          const fs::path file = work_.Of(*record) / name;
          row["files"][name] = nullptr;
          if (HasEntry(file)) row["files"][name] = Sha256(file);
        }
      }
      json["exercises"].push_back(row);
    }
    if (o_.json) {
      std::cout << json.dump(2) << '\n';
      return kExitDone;
    }
    TextTable table("rllrrr");
    table.Add({"", "exercise", "result", "minutes", "checks", "hints"});
    for (const auto& row : json["exercises"]) {
      const auto number = [&](const char* field, std::int64_t unit = 1) {
        return row.contains(field)
                   ? std::to_string(row[field].get<std::int64_t>() / unit)
                   : std::string();
      };
      table.Add({number("number"), row["name"], row["result"],
                 number("seconds", 60), number("checks"), number("hints")});
    }
    PrintLine("student seed",
              progress.seed == 0 ? "none yet" : std::to_string(progress.seed));
    std::cout << '\n' << table.Text();
    return kExitDone;
  }

 private:
  static std::string Title(const Exercise& e) {
    return StrCat("\n", e.number, ". ", e.title, "  (lesson ", e.lesson, ", ",
                  e.minutes, " min)\n");
  }

  /// A command as the student is to type it.
  std::string Lab(const std::string& words) const {
    return StrCat("./lab exercises ", words,
                  o_.work == kOwnWork ? "" : " --work " + o_.work);
  }

  /// What makes a student's prompts his own.
  static std::string OwnOptions(std::uint32_t seed) {
    return StrCat("--context ", ContextOf(seed), " --seed ", seed);
  }

  static ExerciseRecord NewRecord(const Exercise& e) {
    return {.folder = e.folder, .started = NowUtc()};
  }

  static std::string StatusText(const ExerciseRecord* record) {
    if (record == nullptr) return "";
    std::string text = record->passed.empty() ? "started" : "passed";
    if (record->hints > 0) {
      text += ", " +
              kvlab::Count(static_cast<std::uint64_t>(record->hints), "hint");
    }
    if (record->gave_up) text += ", solution read";
    return text;
  }

  /// What another command may have removed since we read it.
  static ExerciseRecord& StillThere(Progress& progress, const Exercise& e) {
    const auto it = progress.exercises.find(e.name);
    if (it == progress.exercises.end()) {
      Fail("exercise ", e.number, " was taken out of progress.json meanwhile");
    }
    return it->second;
  }

  const Exercise& Chosen() const {
    if (o_.which.empty()) FailUsage("which exercise? Give its number");
    return course_.Find(o_.which);
  }

  /// The first that is not passed; null if all are.
  const Exercise* Next(const Progress& progress) const {
    for (const Exercise& e : course_.exercises) {
      const ExerciseRecord* record = progress.Find(e.name);
      if (record == nullptr || record->passed.empty()) return &e;
    }
    return nullptr;
  }

  const Exercise& RequireNext(const Progress& progress) const {
    const Exercise* next = Next(progress);
    if (next == nullptr) FailUsage("all exercises are passed");
    return *next;
  }

  /// The one that was started last and is not passed.
  const Exercise& AtHand() const {
    const Exercise* at_hand = nullptr;
    std::string latest;
    const Progress progress = work_.Read();
    for (const Exercise& e : course_.exercises) {
      const ExerciseRecord* record = progress.Find(e.name);
      if (record != nullptr && record->passed.empty() &&
          record->started >= latest) {
        latest = record->started;
        at_hand = &e;
      }
    }
    if (at_hand == nullptr) {
      FailUsage(
          "no exercise is started and not passed; give a number, or begin the "
          "next: ./lab exercises start");
    }
    return *at_hand;
  }

  ExerciseRecord Started(const Exercise& e) const {
    const Progress progress = work_.Read();
    const ExerciseRecord* record = progress.Find(e.name);
    if (record == nullptr) {
      FailUsage("exercise ", e.number,
                " is not started yet: ", Lab(StrCat("start ", e.number)));
    }
    return *record;
  }

  void RequireTools() {
    try {
      RequireGdb(places_);
    } catch (const EnvironmentFault& fault) {
      Fail(fault.what());
    }
    if (places_.mode == GdbMode::kQemu) {
      Warn("ptrace is refused here, so programs run on qemu under gdb");
    }
  }

  bool CheckOnce(const Exercise& e) {
    std::cout << Title(e) << std::endl;
    const Progress progress = work_.Read();
    const CheckResult result =
        CheckExercise(course_, e, places_, work_, progress);
    std::cout << result.text;
    const bool passed = result.verdict == CheckVerdict::kPassed;
    if (result.verdict != CheckVerdict::kNotStarted) {
      work_.Update([&](Progress& p) {
        ExerciseRecord& record = StillThere(p, e);
        record.checks = std::min(record.checks + 1, kMostChecks);
        if (passed && record.passed.empty()) record.passed = NowUtc();
        if (!passed) return;
        std::map<std::string, double> own;  // "who: what" is somebody else's
        for (const auto& [name, score] : result.scores) {
          if (name.find(": ") == std::string::npos) own[name] = score;
        }
        // The scores of one run belong together.
        const auto sum = [](const std::map<std::string, double>& scores) {
          double total = 0;
          for (const auto& [name, score] : scores) total += score;
          return total;
        };
        if (sum(own) > sum(record.scores)) record.scores = own;
      });
      NoteNewerStarter(e, *progress.Find(e.name));
    }
    if (passed) {
      std::cout << "\n  Passed. How others would: "
                << Lab(StrCat("solution ", e.number)) << '\n';
    } else if (result.verdict != CheckVerdict::kNotStarted &&
               result.verdict != CheckVerdict::kEnvironment) {
      std::cout << "  Stuck? " << Lab(StrCat("hint ", e.number)) << '\n';
    }
    return passed;
  }

  /// The course may have changed since the student began.
  void NoteNewerStarter(const Exercise& e, const ExerciseRecord& record) const {
    for (const std::string& name : course_.StarterFiles(e)) {
      const fs::path then = work_.StartersOf(record) / name;
      if (HasEntry(then) &&
          ReadText(then) != ReadText(course_.Folder(e) / name)) {
        std::cout << "  The course has a newer " << name
                  << " than the one you began with: "
                  << Lab(StrCat("reset ", e.number))
                  << " takes it and keeps a copy of yours.\n";
      }
    }
  }

  std::vector<fs::file_time_type> Times(const Exercise& e,
                                        const ExerciseRecord& record) const {
    std::vector<fs::file_time_type> times;
    for (const std::string& name : course_.StarterFiles(e)) {
      std::error_code error;  // an editor may have it half replaced
      times.push_back(fs::last_write_time(work_.Of(record) / name, error));
    }
    return times;
  }

  /// What VS Code needs to start the debugger as `debug` does.
  void WriteLaunch(const Exercise& e, const ExerciseRecord& record,
                   std::uint32_t seed) const {
    const fs::path program = e.is_code() ? work_.Of(record) / kCodeProgram
                                         : places_.bin() / e.program;
    std::vector<std::string> args = ArgumentsOf(e, seed);
    if (e.is_code()) args = {"--seed", std::to_string(seed)};
    const auto variable = [](const char* name, const std::string& value) {
      return nlohmann::ordered_json{{"name", name}, {"value", value}};
    };
    const nlohmann::ordered_json launch = {
        {"version", "0.2.0"},
        {"configurations",
         {{{"name", e.title},
           {"type", "cppdbg"},
           {"request", "launch"},
           {"program", fs::absolute(program).string()},
           {"args", args},
           {"cwd", places_.source.string()},
           {"MIMode", "gdb"},
           {"environment",
            {variable("KVLAB_SOURCE", places_.source),
             variable("KVLAB_BIN", places_.bin()),
             variable("KVLAB_EXERCISE", fs::absolute(work_.Of(record))),
             variable("KVLAB_SEED", std::to_string(seed))}},
           {"setupCommands",
            {{{"text",
               StrCat("source ", (places_.source / "exercises/gdb/init.gdb")
                                     .string())}}}}}}}};
    const fs::path folder = work_.Of(record) / ".vscode";
    fs::create_directories(folder);
    OutputFile file(folder / "launch.json");
    file.Write(launch.dump(2) + "\n");
    file.Commit();
  }

  const Options& o_;
  Course course_;
  WorkFolder work_;
  Places places_;
};

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  using namespace kvlab;
  return RunProgram(
      argc, argv, "lab_exercises", "The exercises of the course.",
      [](CLI::App& app) -> ProgramBody {
        const auto o = std::make_shared<Options>();
        const auto verb = std::make_shared<int (*)(Exercises&)>(
            [](Exercises& e) { return e.List(); });
        const auto add = [&](const char* name, const char* what,
                             int (*run)(Exercises&)) {
          CLI::App* sub = app.add_subcommand(name, what);
          sub->fallthrough();  // --work may come after the verb
          sub->callback([verb, run] { *verb = run; });
          return sub;
        };
        const auto takes_number = [&](CLI::App* sub) {
          sub->add_option("NN", o->which, "Number or name of the exercise")
              ->type_name("");
          return sub;
        };
        const auto takes_aarch64 = [&](CLI::App* sub) {
          sub->add_flag("--aarch64", o->aarch64,
                        "The programs for 64-bit ARM, on an emulator");
        };
        app.require_subcommand(0, 1);
        app.add_option("--work", o->work,
                       "The student's folder, if another one is meant")
            ->transform(NotEmpty())
            ->type_name("DIR");
        add("list", "All exercises, and how far you are (the default)",
            [](Exercises& e) { return e.List(); });
        takes_number(add("start", "Begin an exercise: copy what you write in",
                         [](Exercises& e) { return e.Start(); }));
        CLI::App* debug =
            takes_number(add("debug", "gdb on the exercise's program, set up",
                             [](Exercises& e) { return e.Debug(); }));
        debug
            ->add_option("--only", o->only,
                         "Of code: run this one test of the check")
            ->type_name("TEST");
        takes_aarch64(debug);
        CLI::App* check = takes_number(add(
            "check", "Is it right?", [](Exercises& e) { return e.Check(); }));
        check->add_flag("--watch", o->watch, "Again after every change");
        takes_aarch64(check);
        takes_number(add("hint", "One hint more each time",
                         [](Exercises& e) { return e.Hint(); }));
        takes_number(add("reset", "Begin anew; a copy of your files is kept",
                         [](Exercises& e) { return e.Reset(); }));
        CLI::App* solution =
            takes_number(add("solution", "The way to the answer, explained",
                             [](Exercises& e) { return e.Solution(); }));
        solution->add_flag("--give-up", o->give_up, "Before you have passed");
        CLI::App* report = add("report", "For teachers: results and times",
                               [](Exercises& e) { return e.Report(); });
        report->add_flag("--json", o->json, "As one JSON object");
        return [o, verb, &app] {
          const InterruptGuard guard;
          Exercises exercises(*o, app.got_subcommand("start"));
          return (*verb)(exercises);
        };
      });
}
