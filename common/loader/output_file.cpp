#include "common/loader/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "common/base/error.h"
#include "common/loader/json.h"

namespace kvlab {

namespace fs = std::filesystem;

OutputFile::OutputFile(const fs::path& path) : path_(path), target_(path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) {
    Fail(PathText(path_), ": cannot be written: it is a directory");
  }
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    if (::access(path.c_str(), W_OK) != 0) FailErrno("cannot be written");
    return;
  }
  // A rename would replace even a file that may not be written.
  const bool replaces = fs::exists(status);
  if (replaces && ::access(path.c_str(), W_OK) != 0) {
    FailErrno("cannot be written");
  }
  if (fs::is_symlink(fs::symlink_status(path, error))) {
    target_ = fs::canonical(path, error);
    if (error) {
      Fail(PathText(path_),
           ": cannot be written: a link that leads nowhere: ", error.message());
    }
  }
  // O_EXCL: never write into a file, or through a link, that someone else has
  // put under this name. A name left by a killed process is passed over.
  for (int attempt = 0; fd_ < 0 && attempt < 100; ++attempt) {
    temporary_ = target_;
    temporary_ += StrCat(".tmp", ::getpid(), "-", attempt);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                 0666);
    if (fd_ < 0 && errno != EEXIST) break;
  }
  if (fd_ < 0) FailErrno("cannot be written");
  // Who may read the old file may read the new one, and nobody else.
  if (replaces) ::fchmod(fd_, static_cast<mode_t>(status.permissions()));
}

void OutputFile::OpenDevice() {
  KVLAB_CHECK(temporary_.empty());  // else Commit was called before
  std::error_code ignored;
  // Without O_NONBLOCK a pipe would wait for its reader, perhaps for ever.
  fd_ = ::open(target_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd_ < 0 && errno == ENXIO && fs::is_fifo(target_, ignored)) {
    Fail(PathText(path_), ": cannot be written: a pipe that nobody reads; ",
         "start its reader first");
  }
  if (fd_ < 0 || ::fcntl(fd_, F_SETFL, 0) != 0) FailErrno("cannot be written");
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::FailErrno(std::string_view what) const {
  const int error = errno;
  Fail(PathText(path_), ": ", what, ": ",
       std::generic_category().message(error));
}

void OutputFile::Write(std::span<const std::byte> bytes) {
  if (fd_ < 0) OpenDevice();
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    // A pipe's reader may be slow. Only Ctrl-C's handler interrupts the wait.
    if (written < 0 && errno == EINTR) {
      throw Error("interrupted", kExitInterrupted);
    }
    if (written < 0) FailErrno("cannot be written");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::Write(std::string_view text) {
  Write(std::as_bytes(std::span(text.data(), text.size())));
}

void OutputFile::Commit() {
  if (fd_ < 0) OpenDevice();
  const int closed = ::close(fd_);  // reports a late write error (NFS, quota)
  fd_ = -1;
  if (temporary_.empty()) {
    if (closed != 0) FailErrno("cannot be written");
    return;
  }
  if (closed != 0 || ::rename(temporary_.c_str(), target_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    FailErrno("cannot be written");
  }
}

}  // namespace kvlab
