/// \file
/// Reading TOML with every field's type checked, as JsonFields does for JSON.
#pragma once

#include <toml++/toml.h>

#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// The table in a file. Throws Error naming file and line.
toml::table ReadTomlFile(const std::filesystem::path& file);

/// The fields of one table. Messages read "FILE:LINE: FIELD: expected ...".
class TomlFields {
 public:
  /// Keeps a reference to `table`; `file` begins every message.
  TomlFields(const toml::table& table, std::string file)
      : table_(table), file_(std::move(file)) {}

  /// Throws Error if there is a field of another name.
  void AllowOnly(std::initializer_list<std::string_view> names) const;

  std::string String(std::string_view field) const;  ///< not empty
  int Int(std::string_view field, int low, int high) const;
  std::vector<std::string> StringsOr(std::string_view field,
                                     std::vector<std::string> fallback) const;
  /// [[field]] tables, in order.
  std::vector<TomlFields> Tables(std::string_view field) const;

  /// Throws "FILE:LINE: field: expected ..., found ...".
  [[noreturn]] void Refuse(std::string_view field, std::string_view expected,
                           std::string_view found) const;

 private:
  const toml::table& table_;
  std::string file_;
};

}  // namespace kvlab
