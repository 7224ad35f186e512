#include "common/loader/json.h"

#include <cmath>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/error.h"

namespace kvlab {
namespace {

constexpr std::size_t kMaxDepth = 64;

/// nlohmann's texts begin with "[json.exception.parse_error.101] ", which
/// tells a reader nothing.
std::string ParserMessage(const Json::exception& e) {
  std::string_view text = e.what();
  const std::size_t end = text.find("] ");
  if (text.starts_with("[json.") && end != std::string_view::npos) {
    text.remove_prefix(end + 2);
  }
  return Printable(text, 160);
}

/// Builds the value while the text is read, in one pass. (The library's own
/// callback would do for the checks, but it searches the whole parent at the
/// end of every object: quadratic in their number.)
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view where) : where_(where) {}

  Json Result() { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override {
    return Add(value);
  }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // not in text

  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    const auto [place, added] = open_.back()->emplace(std::move(name), nullptr);
    if (!added) {
      Fail(where_, ": duplicate key \"", Printable(place.key()),
           "\"; expected each key once");
    }
    value_of_key_ = &*place;
    return true;
  }

  bool parse_error(std::size_t, const std::string&,
                   const Json::exception& e) override {
    Fail(where_, ": not valid JSON: ", ParserMessage(e));
  }

 private:
  /// Puts the value where it belongs.
  Json& Place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_object()) return *value_of_key_ = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }

  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(Json empty) {
    if (open_.size() >= kMaxDepth) {
      Fail(where_, ": JSON nested deeper than ", kMaxDepth, " levels");
    }
    open_.push_back(&Place(std::move(empty)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  std::string_view where_;
  Json root_;
  // Objects and lists that have not ended, outermost first. A list does not
  // grow, so does not move its values, while one of them is open.
  std::vector<Json*> open_;
  Json* value_of_key_ = nullptr;
};

}  // namespace

std::string PathText(const std::filesystem::path& path) {
  return path.empty() ? "\"\"" : Printable(path.string(), 1024);
}

bool HasEntry(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() !=
         std::filesystem::file_type::not_found;
}

void CheckRegularFile(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::regular) return;
  const std::string name = PathText(path);
  if (status.type() == fs::file_type::not_found) {
    std::error_code ignored;
    if (fs::is_symlink(fs::symlink_status(path, ignored))) {
      Fail(name, ": a link to ", PathText(fs::read_symlink(path, ignored)),
           ", which does not exist; download the model again");
    }
    Fail(name, ": no such file");
  }
  if (status.type() == fs::file_type::directory) {
    Fail(name, ": expected a file, found a directory");
  }
  if (error) Fail(name, ": cannot be read: ", error.message());
  Fail(name, ": expected a regular file, found a device, pipe or socket");
}

void CheckDirectory(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) return;
  Fail(PathText(path), ": expected a model directory, found ",
       std::filesystem::exists(status) ? "a file" : "nothing of that name");
}

std::string ReadSmallFile(const std::filesystem::path& path,
                          std::uint64_t max_bytes) {
  CheckRegularFile(path);
  std::ifstream in(path, std::ios::binary);
  std::error_code error;
  const std::uint64_t size = std::filesystem::file_size(path, error);
  if (!in || error) {
    Fail(PathText(path), ": cannot be opened for reading; check its rights");
  }
  if (size > max_bytes) {
    Fail(PathText(path), ": ", size, " bytes, expected at most ", max_bytes);
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (in.gcount() != static_cast<std::streamsize>(size)) {
    Fail(PathText(path), ": expected ", size, " bytes, could read ",
         in.gcount());
  }
  return text;
}

Json ParseJson(std::string_view text, std::string_view where) {
  // The library takes a NUL byte for the end of the text and skips a byte
  // order mark; JSON allows neither.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    Fail(where, ": not valid JSON: byte ", nul, " is NUL");
  }
  if (text.starts_with("\xEF\xBB\xBF")) {
    Fail(where,
         ": not valid JSON: starts with a byte order mark; save it as "
         "plain UTF-8");
  }
  Builder builder(where);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.Result();
}

Json ReadJsonFile(const std::filesystem::path& path, std::uint64_t max_bytes) {
  return ParseJson(ReadSmallFile(path, max_bytes), PathText(path));
}

std::string JsonText(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) {
    return value.size() > 8 ? StrCat("a list of ", value.size(), " values")
                            : Printable(value.dump());
  }
  return Printable(value.dump());
}

JsonFields::JsonFields(const Json& object, std::string where,
                       std::string prefix)
    : object_(object), where_(std::move(where)), prefix_(std::move(prefix)) {
  if (!object_.is_object()) {
    Fail(where_, ": expected a JSON object {...}, found ", JsonText(object_));
  }
}

const Json* JsonFields::Find(std::string_view field) const {
  const auto found = object_.find(field);
  return found == object_.end() ? nullptr : &*found;
}

const Json* JsonFields::FindNonNull(std::string_view field) const {
  const Json* value = Find(field);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void JsonFields::Refuse(std::string_view field, std::string_view expected,
                        std::string_view found) const {
  Fail(where_, ": ", prefix_, field, ": expected ", expected, ", found ",
       found);
}

const Json& JsonFields::Need(std::string_view field,
                             std::string_view expected) const {
  const Json* value = Find(field);
  if (value == nullptr) Refuse(field, expected, "no such field");
  return *value;
}

int JsonFields::Int(std::string_view field, int low, int high) const {
  const std::string expected = StrCat("an integer of ", low, " to ", high);
  const Json& value = Need(field, expected);
  // Integers beyond 64 bits, and 1e300, are floats to the parser.
  const bool in_range =
      value.is_number_unsigned()
          ? std::cmp_less_equal(value.get<std::uint64_t>(), high) &&
                std::cmp_greater_equal(value.get<std::uint64_t>(), low)
          : value.is_number_integer() && value.get<std::int64_t>() >= low &&
                value.get<std::int64_t>() <= high;
  if (!in_range) Refuse(field, expected, JsonText(value));
  return value.get<int>();
}

int JsonFields::IntOr(std::string_view field, int fallback, int low,
                      int high) const {
  return Find(field) == nullptr ? fallback : Int(field, low, high);
}

double JsonFields::Positive(std::string_view field) const {
  constexpr std::string_view kExpected = "a finite number above 0";
  const Json& value = Need(field, kExpected);
  const double number = value.is_number() ? value.get<double>() : 0;
  if (!(number > 0) || !std::isfinite(number)) {
    Refuse(field, kExpected, JsonText(value));
  }
  return number;
}

bool JsonFields::BoolOr(std::string_view field, bool fallback) const {
  const Json* value = Find(field);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) Refuse(field, "true or false", JsonText(*value));
  return value->get<bool>();
}

std::string JsonFields::String(std::string_view field) const {
  const Json& value = Need(field, "a string");
  if (!value.is_string()) Refuse(field, "a string", JsonText(value));
  return value.get<std::string>();
}

}  // namespace kvlab
