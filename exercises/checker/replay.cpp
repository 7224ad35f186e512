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

namespace kvlab {
namespace {

namespace fs = std::filesystem;

/// Most that a run under gdb may take, in seconds; it takes one or two, under
/// an emulator ten.
constexpr int kMostSeconds = 120;
constexpr int kTimedOut = 124;  // exit code of timeout

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

/// The student's file as the build is to see it: compiler and debugger name
/// the student's own.
std::string Staged(const fs::path& file) {
  const std::string text = ReadSmallFile(file, 1'000'000);
  std::string name;
  for (const char c : fs::absolute(file).string()) {
    if (c == '"' || c == '\\') name += '\\';
    name += c;
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
  const auto replay = [&] {
    SetGdbEnvironment(places, folder, seed, facts);
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
  } catch (const EnvironmentFault&) {
    throw;
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

BuildResult BuildCode(const Exercise& exercise, const Places& places,
                      const fs::path& file) {
  const fs::path staged =
      places.build / "exercises" / exercise.folder / exercise.source;
  const std::string text = Staged(file);
  if (!HasEntry(staged) || ReadSmallFile(staged, 2'000'000) != text) {
    fs::create_directories(staged.parent_path());
    OutputFile out(staged);
    out.Write(text);
    out.Commit();
  }
  const auto result = RunChild({"cmake", "--build", places.build, "--target",
                                "exercise_" + exercise.name},
                               "");
  CheckInterrupted();
  if (!result) FailEnvironment("cmake is not in the PATH");
  const std::string messages = AboutFile(result->out + result->err, file);
  if (result->exit_code != 0 && messages.empty()) {
    FailEnvironment("the build failed, and not in your file:",
                    LastLines(result->out + result->err, 20));
  }
  return {result->exit_code == 0, messages};
}

fs::path CodeProgram(const Exercise& exercise, const Places& places) {
  return places.build / "bin" / ("exercise_" + exercise.name);
}

bool CodeRun::passed() const {
  return !tests.empty() && std::ranges::all_of(tests, [](const CodeTest& test) {
    return test.failure.empty();
  });
}

CodeRun RunCode(const Exercise& exercise, const Places& places,
                std::uint32_t seed) {
  const auto result = RunChild(
      {CodeProgram(exercise, places), "--json", "--seed", std::to_string(seed)},
      "");
  CheckInterrupted();
  if (!result) FailEnvironment("the program of the check cannot be run");
  CodeRun run;
  std::optional<CodeTest> begun;
  // What the student's code prints stands between our lines.
  for (const std::string& line : LinesOf(result->out)) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) {
      if (!line.empty()) run.printed += "  " + Printable(line, 200) + "\n";
    } else if (json.contains("begins")) {
      begun = CodeTest{json.at("begins"), json.at("lesson"), ""};
    } else if (json.contains("test") && begun) {
      begun->failure = json.at("failure");
      run.tests.push_back(*begun);
      begun.reset();
    } else if (json.contains("score")) {
      run.scores[json.at("score")] = json.at("value").get<double>();
    }
  }
  for (const std::string& line : LinesOf(result->err)) {
    run.printed += "  " + Printable(line, 200) + "\n";
  }
  if (result->exit_code > 1 || begun) {
    if (!begun) begun = CodeTest{"the end", "", ""};
    begun->failure =
        result->exit_code == 128 + SIGALRM
            ? "it did not end in 20 seconds: is there a loop that never ends?"
            : StrCat("the program crashed here",
                     result->exit_code > 128
                         ? StrCat(" (signal ", result->exit_code - 128, ")")
                         : "",
                     "; ./lab exercises debug ", exercise.number,
                     " stops where");
    run.tests.push_back(*begun);
  }
  return run;
}

}  // namespace kvlab
