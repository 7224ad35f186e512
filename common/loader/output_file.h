/// \file
/// Files that appear whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace kvlab {

/// A file under construction. The bytes go to a temporary file beside the
/// target; Commit() renames it over the target, and a destructor without Commit
/// removes it. So a reader never sees half a file, and an interrupted program
/// leaves what was there before.
///
/// A target that exists and is no regular file (/dev/null, a pipe) is written
/// directly: renaming would replace the device by a file. It is opened by the
/// first Write, since the reader of a pipe that is opened and closed again sees
/// its end.
class OutputFile {
 public:
  /// Creates the temporary file, so that a path that cannot be written fails
  /// before the work and not after it. A link is followed: the file it names is
  /// replaced, the link stays. A file that exists keeps its permissions, and
  /// must be writable. Throws Error naming `path`, also if it is a link that
  /// leads nowhere.
  explicit OutputFile(const std::filesystem::path& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// As the caller named it.
  const std::filesystem::path& path() const { return path_; }

  /// Appends `bytes`. Throws Error: disk full, a pipe without a reader, a wait
  /// for its reader that a signal interrupted (kExitInterrupted).
  void Write(std::span<const std::byte> bytes);
  void Write(std::string_view text);

  /// Makes the file visible under its name; call once, last. It is not synced
  /// to the disk: a power failure may still lose it. Throws Error.
  void Commit();

 private:
  void OpenDevice();
  [[noreturn]] void FailErrno(std::string_view what) const;

  std::filesystem::path path_;       // as the caller named it
  std::filesystem::path target_;     // with links resolved
  std::filesystem::path temporary_;  // empty: writing to the target itself
  int fd_ = -1;
};

}  // namespace kvlab
