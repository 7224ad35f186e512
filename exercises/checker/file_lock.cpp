#include "exercises/checker/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "common/base/error.h"
#include "common/lab/interrupt.h"
#include "common/loader/json.h"

namespace kvlab {

FileLock::FileLock(const std::filesystem::path& file)
    : fd_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  const auto fail = [&](const char* what) {
    const int error = errno;
    Fail(PathText(file), ": ", what, ": ",
         std::generic_category().message(error));
  };
  if (fd_ < 0) fail("cannot be made");
  while (::flock(fd_, LOCK_EX) != 0) {
    const int error = errno;
    if (error == EINTR && !Interrupted()) continue;
    ::close(fd_);
    CheckInterrupted();
    errno = error;
    fail("cannot be locked");
  }
}

FileLock::~FileLock() { ::close(fd_); }

}  // namespace kvlab
