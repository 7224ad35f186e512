#include "common/lab/child_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "common/base/error.h"
#include "common/loader/json.h"

extern char** environ;  // POSIX; no header has to declare it

namespace kvlab {
namespace {

/// Most that a program may print, in bytes.
constexpr std::size_t kMaxOutput = 64'000'000;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FilePtr = std::unique_ptr<std::FILE, CloseFile>;

std::string ErrnoText(int error) {
  return std::generic_category().message(error);
}

/// Files carry input and outputs, not pipes: with pipes both programs could
/// wait for each other, each with a full one. Nothing else sees these files.
FilePtr TemporaryFile() {
  FilePtr file(std::tmpfile());
  if (!file) Fail("a temporary file cannot be made: ", ErrnoText(errno));
  return file;
}

std::string ReadBack(std::FILE* file, const std::string& program) {
  std::rewind(file);
  std::string text;
  std::array<char, 65536> block;
  while (const std::size_t n =
             std::fread(block.data(), 1, block.size(), file)) {
    text.append(block.data(), n);
    if (text.size() > kMaxOutput) {
      Fail(program, ": printed over ", kMaxOutput, " bytes");
    }
  }
  return text;
}

int WaitFor(pid_t child, const std::string& program) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) Fail(program, ": lost: ", ErrnoText(errno));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::optional<ChildResult> Run(const std::vector<std::string>& command,
                               int input) {
  const FilePtr out = TemporaryFile();
  const FilePtr err = TemporaryFile();
  std::vector<char*> words;
  words.reserve(command.size() + 1);
  for (const std::string& word : command) {
    words.push_back(const_cast<char*>(word.c_str()));  // not written to
  }
  words.push_back(nullptr);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, fileno(out.get()), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, fileno(err.get()), STDERR_FILENO);
  pid_t child = 0;
  const int error =
      ::posix_spawnp(&child, words[0], &files, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error == ENOENT || error == ENOTDIR) return std::nullopt;
  if (error != 0) Fail(command[0], ": cannot be run: ", ErrnoText(error));

  ChildResult result;
  result.exit_code = WaitFor(child, command[0]);
  result.out = ReadBack(out.get(), command[0]);
  result.err = ReadBack(err.get(), command[0]);
  // 127 is how a shell says so, and where the C library learns of it too late
  // (in an emulator) posix_spawn.
  if (result.exit_code == 127 && result.out.empty()) return std::nullopt;
  return result;
}

}  // namespace

std::optional<ChildResult> RunChild(const std::vector<std::string>& command,
                                    std::string_view input) {
  const FilePtr file = TemporaryFile();
  if (std::fwrite(input.data(), 1, input.size(), file.get()) != input.size() ||
      std::fflush(file.get()) != 0) {
    Fail("a temporary file cannot be written: ", ErrnoText(errno));
  }
  std::rewind(file.get());
  return Run(command, fileno(file.get()));
}

std::optional<ChildResult> RunChildOnFile(
    const std::vector<std::string>& command,
    const std::filesystem::path& input) {
  CheckRegularFile(input);
  const FilePtr file(std::fopen(input.c_str(), "rb"));
  if (!file) Fail(PathText(input), ": cannot be read: ", ErrnoText(errno));
  return Run(command, fileno(file.get()));
}

}  // namespace kvlab
