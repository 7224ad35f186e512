#include "exercises/checker/replay.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

#include "common/lab/child_process.h"
#include "common/lab/interrupt.h"
#include "common/loader/json.h"
#include "common/loader/output_file.h"
#include "exercises/checker/file_lock.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;

/// Most that a run under gdb may take, in seconds; it takes one or two, under
/// an emulator ten.
constexpr int kMostSeconds = 120;
constexpr int kTimedOut = 124;  // exit code of timeout
/// Lines that are shown of what a student's code printed.
constexpr std::size_t kMostPrinted = 30;

/// A folder that is gone when it goes out of scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "kvlab.XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      Fail(PathText(name), ": the folder cannot be made");
    }
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

template <typename... Ts>
[[noreturn]] void FailEnvironment(const Ts&... values) {
  throw EnvironmentFault(StrCat(values...));
}

std::vector<std::string> LinesOf(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The end of a program's output, for messages.
std::string LastLines(const std::string& text, std::size_t count) {
  const std::vector<std::string> lines = LinesOf(text);
  std::string last;
  for (std::size_t i = lines.size() - std::min(count, lines.size());
       i < lines.size(); ++i) {
    last += "\n    " + Printable(lines[i], 200);
  }
  return last;
}

bool HasProgram(const std::string& name) {
  return RunChild({name, "--version"}, "").has_value();
}

bool GdbCanRun() {
  const auto result =
      RunChild({"timeout", "-k", "2", "20", "gdb", "-nx", "-q", "-batch", "-ex",
                "set debuginfod enabled off", "-ex", "run", "/bin/true"},
               "");
  return result && result->out.find("exited normally") != std::string::npos;
}

/// Runs gdb with facts.py; returns what that wrote.
Json RunFacts(const std::vector<std::string>& command, const fs::path& facts) {
  const auto result = RunChild(command, "");
  CheckInterrupted();
  if (!result) {
    Fail("gdb, or timeout (of coreutils), is not installed");
  }
  if (result->exit_code == kTimedOut) {
    Fail("the run under gdb did not end in ", kMostSeconds, " seconds");
  }
  if (!HasEntry(facts)) {
    Fail("the run under gdb gave no facts:",
         LastLines(result->out + result->err, 8));
  }
  return ReadJsonFile(facts, 4'000'000);
}

/// The student's answers for facts.py, as the checker reads them: {name: text,
/// or a list of texts}.
void WriteAnswers(const fs::path& toml, const fs::path& json) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const Answer& answer : ReadAnswers(toml)) {
    if (answer.is_list) {
      object[answer.name] = answer.values;
    } else {
      object[answer.name] = answer.values.front();
    }
  }
  OutputFile file(json);
  file.Write(object.dump(-1, ' ', false,
                         nlohmann::ordered_json::error_handler_t::replace));
  file.Commit();
}

/// The student's file as the build is to see it: compiler and debugger name
/// the student's own.
std::string Staged(const fs::path& file) {
  const std::string text = ReadSmallFile(file, 1'000'000);
  std::string name;
  for (const char c : fs::absolute(file).string()) {
    if (c == '"' || c == '\\') name += '\\';
    name += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return StrCat("#line 1 \"", name, "\"\n", text);
}

/// Lines of a compiler's output from the first on that names the student's
/// file, which is written as the student knows it.
std::string AboutFile(const std::string& output, const fs::path& file) {
  const std::string absolute = fs::absolute(file).string();
  std::string about;
  int lines = 0;
  bool begun = false;
  for (std::string line : LinesOf(output)) {
    const std::size_t at = line.find(absolute);
    begun = begun || at != std::string::npos;
    // What ninja says of its steps: "[2/2] Linking ...", "ninja: ...".
    if (!begun || line.starts_with("[") || line.starts_with("ninja: ")) {
      continue;
    }
    if (++lines > 30) return about + "  ...\n";
    if (at != std::string::npos) {
      line.replace(at, absolute.size(), file.string());
    }
    about += "  " + Printable(line, 400) + "\n";
  }
  return about;
}

}  // namespace

fs::path Places::bin() const {
  return (mode == GdbMode::kAarch64 ? build.parent_path() / "aarch64" : build) /
         "bin";
}

std::vector<std::string> GdbCommand(const Places& places) {
  const char* gdb = places.mode == GdbMode::kAarch64 ? "gdb-multiarch" : "gdb";
  return {gdb, "-nx", "-q", "-x", (places.source / "exercises/gdb/init.gdb")};
}

void SetGdbEnvironment(const Places& places, const fs::path& folder,
                       std::uint32_t seed, const fs::path& facts) {
  const char* mode = places.mode == GdbMode::kNative ? "native"
                     : places.mode == GdbMode::kQemu ? "qemu"
                                                     : "aarch64";
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 1);
  };
  set("KVLAB_GDB_MODE", mode);
  set("KVLAB_SOURCE", places.source);
  set("KVLAB_BIN", places.bin());
  set("KVLAB_EXERCISE", fs::absolute(folder));
  set("KVLAB_SEED", std::to_string(seed));
  set("KVLAB_CONTEXT", std::to_string(ContextOf(seed)));
  set("KVLAB_FACTS", facts);
}

void RequireGdb(Places& places) {
  if (places.mode == GdbMode::kAarch64) {
    if (!HasProgram("gdb-multiarch")) {
      FailEnvironment(
          "gdb-multiarch is not installed (Debian, Ubuntu: apt-get install "
          "gdb-multiarch qemu-user-static)");
    }
    return;
  }
  const auto python = RunChild(
      {"gdb", "-nx", "-q", "-batch", "-ex", "python print(6 * 7)"}, "");
  if (!python) {
    FailEnvironment(
        "gdb is not installed (Debian, Ubuntu: apt-get install gdb)");
  }
  if (python->out.find("42") == std::string::npos) {
    FailEnvironment(
        "this gdb was built without Python, which the checks need; "
        "Debian's and Ubuntu's have it");
  }
  if (places.mode == GdbMode::kQemu || GdbCanRun()) return;
  for (const char* qemu : {"qemu-x86_64", "qemu-x86_64-static"}) {
    if (!HasProgram(qemu)) continue;
    places.mode = GdbMode::kQemu;
    return;
  }
  FailEnvironment(
      "gdb may not trace programs here (ptrace is refused, as in some "
      "containers); install qemu-user, and the checks go through it, or allow "
      "it: docker run --cap-add=SYS_PTRACE --security-opt seccomp=unconfined");
}

std::vector<Fact> ReplayFacts(const Course& course, const Exercise& exercise,
                              Places& places, const fs::path& folder,
                              std::uint32_t seed) {
  const TemporaryFolder temporary;
  const fs::path facts = temporary.path() / "facts.json";
  const fs::path answers = temporary.path() / "answers.json";
  WriteAnswers(folder / "answers.toml", answers);
  const auto replay = [&] {
    SetGdbEnvironment(places, folder, seed, facts);
    ::setenv("KVLAB_ANSWERS", answers.c_str(), 1);
    std::vector<std::string> command = {"timeout", "--foreground", "-k", "2",
                                        std::to_string(kMostSeconds)};
    for (const std::string& word : GdbCommand(places)) command.push_back(word);
    for (const std::string& word :
         {std::string("-batch"), std::string("-x"),
          (course.Folder(exercise) / "facts.py").string(),
          std::string("--args"), (places.bin() / exercise.program).string()}) {
      command.push_back(word);
    }
    for (const std::string& word : ArgumentsOf(exercise, seed)) {
      command.push_back(word);
    }
    return RunFacts(command, facts);
  };
  std::optional<Json> json;
  // That gdb can run programs is asked only where it did not.
  try {
    json = replay();
  } catch (const Error& error) {
    if (error.exit_code() == kExitInterrupted) throw;
  }
  if (!json || json->contains("error")) {
    const GdbMode before = places.mode;
    RequireGdb(places);
    if (!json || places.mode != before) json = replay();
  }
  if (json->contains("error")) {
    Fail("the run under gdb failed: ", Printable((*json)["error"].dump(), 600));
  }
  return ParseFacts(*json);
}

/// What the linker misses: a function that the student was to write.
std::string Undefined(const std::string& output) {
  std::string missing;
  for (const std::string& line : LinesOf(output)) {
    if (line.find("undefined ") != std::string::npos) {
      missing += "  " + Printable(line, 400) + "\n";
    }
  }
  return missing.empty()
             ? ""
             : "  What the check calls is missing, or has other parameters:\n" +
                   missing;
}

/// Replaces `to`, which may be running.
void CopyProgram(const fs::path& from, const fs::path& to) {
  fs::create_directories(to.parent_path());
  const fs::path fresh = to.string() + ".new";
  fs::copy_file(from, fresh, fs::copy_options::overwrite_existing);
  fs::rename(fresh, to);
}

BuildResult BuildCode(const Exercise& exercise, const Places& places,
                      const fs::path& file, const fs::path& program) {
  const FileLock lock(places.build / "exercises" / ".lock");
  const fs::path staged =
      places.build / "exercises" / exercise.folder / exercise.source;
  // A compiler that has nothing to do does not warn again.
  const fs::path said = staged.string() + ".said";
  const std::string text = Staged(file);
  if (!HasEntry(staged) || ReadSmallFile(staged, 2'000'000) != text) {
    fs::create_directories(staged.parent_path());
    fs::remove(said);
    OutputFile out(staged);
    out.Write(text);
    out.Commit();
  }
  const auto result = RunChild({"cmake", "--build", places.build, "--target",
                                "exercise_" + exercise.name},
                               "");
  CheckInterrupted();
  if (!result) FailEnvironment("cmake is not in the PATH");
  const std::string output = result->out + result->err;
  std::string messages = AboutFile(output, file);
  if (result->exit_code != 0) {
    if (messages.empty()) messages = Undefined(output);
    // It may call itself another file (#line).
    if (messages.empty() &&
        output.find(StrCat("exercise_", exercise.name, ".dir/", exercise.folder,
                           "/", exercise.source)) != std::string::npos) {
      messages = LastLines(output, 20) + "\n";
    }
    if (messages.empty()) {
      FailEnvironment("the build failed, and not in your file:",
                      LastLines(output, 20));
    }
    return {false, messages};
  }
  if (messages.empty() && HasEntry(said)) {
    messages = ReadSmallFile(said, 1'000'000);
  } else {
    OutputFile out(said);
    out.Write(messages);
    out.Commit();
  }
  CopyProgram(places.build / "bin" / ("exercise_" + exercise.name), program);
  return {true, messages};
}

bool CodeRun::passed() const {
  return !tests.empty() && std::ranges::all_of(tests, [](const CodeTest& test) {
    return test.failure.empty();
  });
}

CodeRun RunCode(const fs::path& program, std::uint32_t seed) {
  const TemporaryFolder temporary;
  const fs::path report = temporary.path() / "report";
  const auto result = RunChild(
      {"timeout", "--foreground", "-k", "2", std::to_string(kMostSeconds),
       program, "--report", report, "--seed", std::to_string(seed)},
      "");
  CheckInterrupted();
  if (!result) FailEnvironment("timeout (of coreutils) is not installed");
  CodeRun run;
  std::optional<CodeTest> begun;
  bool ended = false;
  if (HasEntry(report)) {
    for (const std::string& line : LinesOf(ReadSmallFile(report, 4'000'000))) {
      const Json record = Json::parse(line, nullptr, false);
      if (!record.is_object()) break;  // it was killed as it wrote
      if (record.contains("begins")) {
        begun = CodeTest{record.at("begins"), record.at("lesson"), ""};
      } else if (record.contains("test") && begun) {
        if (!record.at("failure").is_null()) {
          begun->failure = record.at("failure");
          if (begun->failure.empty()) begun->failure = "it says no reason";
        }
        run.tests.push_back(*begun);
        begun.reset();
      } else if (record.contains("score")) {
        run.scores[record.at("score")] = record.at("value").get<double>();
      } else if (record.contains("end")) {
        ended = record.at("end") == run.tests.size();
      }
    }
  }
  const std::vector<std::string> printed = LinesOf(result->out + result->err);
  for (std::size_t i = 0; i < std::min(printed.size(), kMostPrinted); ++i) {
    run.printed += "  " + Printable(printed[i], 200) + "\n";
  }
  if (printed.size() > kMostPrinted) {
    run.printed += StrCat("  ... ", printed.size() - kMostPrinted, " more\n");
  }
  // Whatever the code printed or did: what passes has come to its end.
  const int code = result->exit_code;
  if (ended && code == (run.passed() ? kExitDone : kExitFailed)) return run;
  if (!begun) {
    begun = CodeTest{run.tests.empty() ? "the beginning" : "the end", "", ""};
  }
  if (code == 128 + SIGALRM || code == kTimedOut || code == 128 + SIGXCPU) {
    begun->failure =
        "it did not end in 20 seconds: is there a loop that never ends?";
  } else if (code == 128 + SIGXFSZ) {
    begun->failure = "it printed more than 16 MB";
  } else if (code > 128) {
    begun->failure =
        StrCat("the program crashed here (signal ", code - 128, ")");
  } else {
    begun->failure = StrCat("the program ended here, with exit code ", code,
                            ", before its tests had");
  }
  run.tests.push_back(*begun);
  return run;
}

}  // namespace kvlab
