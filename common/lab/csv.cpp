#include "common/lab/csv.h"

#include <algorithm>
#include <vector>

namespace kvlab {
namespace {

using Json = nlohmann::ordered_json;

/// "a": {"b": 1} becomes "a.b": 1.
void Flatten(const Json& object, const std::string& prefix, Json& flat) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      Flatten(value, prefix + key + '.', flat);
    } else {
      flat[prefix + key] = value;
    }
  }
}

/// RFC 4180: quoted where it must be.
std::string CsvField(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  const auto text = value.get<std::string>();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + '"';
}

}  // namespace

std::string CsvText(const Json& rows) {
  std::vector<Json> flat;
  std::vector<std::string> columns;
  for (const Json& row : rows) {
    Json& fields = flat.emplace_back(Json::object());
    Flatten(row, "", fields);
    for (const auto& [key, value] : fields.items()) {
      if (std::ranges::find(columns, key) == columns.end()) {
        columns.push_back(key);
      }
    }
  }
  // What is an object in other rows and null here has no column of its own.
  std::erase_if(columns, [&](const std::string& column) {
    return std::ranges::any_of(columns, [&](const std::string& other) {
      return other.starts_with(column + '.');
    });
  });
  std::string text;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    text += (i == 0 ? "" : ",") + columns[i];
  }
  text += '\n';
  for (const Json& row : flat) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      text += (i == 0 ? "" : ",") + CsvField(row.value(columns[i], Json()));
    }
    text += '\n';
  }
  return text;
}

}  // namespace kvlab
