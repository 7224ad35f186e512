/// \file
/// One program of the course at a time.
#pragma once

#include <filesystem>

namespace kvlab {

/// Holds a lock on a file, which is made if it is not there, while it lives;
/// waits until it gets it. Throws Error.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

}  // namespace kvlab
