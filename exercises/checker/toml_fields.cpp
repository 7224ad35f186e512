#include "exercises/checker/toml_fields.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/loader/json.h"

namespace kvlab {
namespace {

/// Nobody writes more by hand.
constexpr std::uint64_t kMaxTomlBytes = 1'000'000;

}  // namespace

toml::table ReadTomlFile(const std::filesystem::path& file) {
  const std::string text = ReadSmallFile(file, kMaxTomlBytes);
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    Fail(PathText(file), ":", error.source().begin.line,
         ": cannot be read as TOML (a word stands in quotes, a list in [ ], a "
         "number has a point before decimals): ",
         Printable(error.description(), 200));
  }
}

void TomlFields::AllowOnly(
    std::initializer_list<std::string_view> names) const {
  for (const auto& [key, value] : table_) {
    if (std::ranges::find(names, key.str()) == names.end()) {
      Refuse(key.str(), "no such field", "it");
    }
  }
}

std::string TomlFields::String(std::string_view field) const {
  const auto value = table_[field].value_exact<std::string>();
  if (!value || value->empty()) Refuse(field, "a string", "none");
  return *value;
}

int TomlFields::Int(std::string_view field, int low, int high) const {
  const auto value = table_[field].value_exact<std::int64_t>();
  if (!value || *value < low || *value > high) {
    Refuse(field, StrCat("a whole number from ", low, " to ", high),
           value ? std::to_string(*value) : "none");
  }
  return static_cast<int>(*value);
}

std::vector<std::string> TomlFields::StringsOr(
    std::string_view field, std::vector<std::string> fallback) const {
  if (!table_.contains(field)) return fallback;
  const toml::array* array = table_[field].as_array();
  if (array == nullptr) Refuse(field, "a list of strings", "something else");
  std::vector<std::string> strings;
  for (const toml::node& node : *array) {
    const auto value = node.value_exact<std::string>();
    if (!value) Refuse(field, "a list of strings", "another element");
    strings.push_back(*value);
  }
  return strings;
}

std::vector<TomlFields> TomlFields::Tables(std::string_view field) const {
  std::vector<TomlFields> tables;
  if (!table_.contains(field)) return tables;
  const toml::array* array = table_[field].as_array();
  if (array == nullptr) Refuse(field, "[[tables]]", "something else");
  for (const toml::node& node : *array) {
    const toml::table* table = node.as_table();
    if (table == nullptr) Refuse(field, "[[tables]]", "another element");
    tables.emplace_back(*table, file_);
  }
  return tables;
}

void TomlFields::Refuse(std::string_view field, std::string_view expected,
                        std::string_view found) const {
  const toml::node* node = table_.get(field);
  const auto line =
      (node != nullptr ? node->source() : table_.source()).begin.line;
  Fail(file_, ":", line, ": ", field, ": expected ", expected, ", found ",
       Printable(found));
}

}  // namespace kvlab
