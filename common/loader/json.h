/// \file
/// Reading JSON files that may be broken or hostile.
///
/// Internal to the loader and the lab programs. nlohmann-json does the parsing;
/// what stands here bounds it (file size, depth), makes it strict (no duplicate
/// keys, no trailing NUL, no byte order mark) and turns its exceptions into one
/// line that names the file and the field.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kvlab {

using Json = nlohmann::json;

/// A path as it may be printed in one line; an empty one as "".
std::string PathText(const std::filesystem::path& path);

/// True if there is something of that name, be it a link that leads nowhere:
/// then reading it says what is wrong with it.
bool HasEntry(const std::filesystem::path& path);

/// Throws Error unless `path` is a regular file or a link to one; tells a
/// missing file from a dangling link, a directory and a device.
void CheckRegularFile(const std::filesystem::path& path);

/// Throws Error unless `path` is a directory or a link to one.
void CheckDirectory(const std::filesystem::path& path);

/// The bytes of `path`. Throws Error if it is no regular file, cannot be read
/// or is longer than `max_bytes` (nothing is allocated then).
std::string ReadSmallFile(const std::filesystem::path& path,
                          std::uint64_t max_bytes);

/// Parses `text`; `where` begins every message (a file name). Nesting is
/// limited to 64 levels. Throws Error.
Json ParseJson(std::string_view text, std::string_view where);

/// ReadSmallFile and ParseJson. The default limit, 64 MB, is six times the
/// largest tokenizer.json of the models this course reads.
Json ReadJsonFile(const std::filesystem::path& path,
                  std::uint64_t max_bytes = 64'000'000);

/// A value as it may be printed in one line, shortened.
std::string JsonText(const Json& value);

/// The fields of one JSON object, each read with its type and range checked.
/// Messages read "FILE: FIELD: expected ..., found ...".
class JsonFields {
 public:
  /// Keeps a reference to `object`. `prefix` comes before every field's name
  /// ("rope_parameters."). Throws Error if it is not a JSON object.
  JsonFields(const Json& object, std::string where, std::string prefix = "");

  /// The field, or nullptr where it is absent.
  const Json* Find(std::string_view field) const;
  /// As Find, but a null counts as absent too.
  const Json* FindNonNull(std::string_view field) const;

  /// An integer of [low, high]. 8.0 and "8" are no integers. Throws Error.
  int Int(std::string_view field, int low, int high) const;
  int IntOr(std::string_view field, int fallback, int low, int high) const;
  /// A finite number above 0. Throws Error.
  double Positive(std::string_view field) const;
  bool BoolOr(std::string_view field, bool fallback) const;
  std::string String(std::string_view field) const;

  /// Throws "where: field: expected `expected`, found `found`".
  [[noreturn]] void Refuse(std::string_view field, std::string_view expected,
                           std::string_view found) const;

 private:
  const Json& Need(std::string_view field, std::string_view expected) const;

  const Json& object_;
  std::string where_;
  std::string prefix_;
};

}  // namespace kvlab
