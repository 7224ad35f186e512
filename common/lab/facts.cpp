#include "common/lab/facts.h"

#include <algorithm>
#include <cctype>

#include "common/base/error.h"
#include "common/loader/json.h"

namespace kvlab {
namespace {

std::string Replaced(std::string text, std::string_view from,
                     std::string_view to) {
  const std::size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

std::string_view Article(std::string_view value) {
  const bool vowel =
      !value.empty() &&
      std::string_view("aeiouAEIOU").find(value[0]) != std::string_view::npos;
  return vowel ? "an" : "a";
}

/// A byte that can be inside a word: ASCII letters and digits, and every byte
/// of a character beyond ASCII.
bool IsWordByte(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         static_cast<unsigned char>(c) >= 0x80;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return lower;
}

std::vector<std::string> Strings(const Json& object, const char* field,
                                 const std::string& where) {
  const auto it = object.find(field);
  std::vector<std::string> strings;
  if (it != object.end() && it->is_array()) {
    for (const Json& item : *it) {
      if (item.is_string()) strings.push_back(item.get<std::string>());
    }
  }
  if (strings.empty()) {
    Fail(where, ": ", field,
         ": expected a list of strings; restore the file "
         "from the repository");
  }
  return strings;
}

}  // namespace

std::string Fact::Text() const {
  std::string text = Replaced(attribute->fact, "{a}", Article(value));
  return Replaced(Replaced(text, "{name}", name), "{value}", value);
}

std::string Fact::Question() const {
  return Replaced(attribute->questions.front(), "{name}", name);
}

FactBook FactBook::LoadShipped() {
  const std::filesystem::path file =
      std::filesystem::path(KVLAB_LAB_MODEL_DIR) / "facts.json";
  const std::string where = PathText(file);
  const Json json = ReadJsonFile(file);
  const JsonFields fields(json, where);
  FactBook book;
  book.names_ = Strings(json, "names", where);
  const Json* attributes = fields.Find("attributes");
  if (attributes == nullptr || !attributes->is_array()) {
    fields.Refuse("attributes", "a list", "none");
  }
  for (const Json& item : *attributes) {
    const JsonFields attribute(item, where, "attributes.");
    book.attributes_.push_back({.id = attribute.String("id"),
                                .fact = attribute.String("fact"),
                                .questions = Strings(item, "questions", where),
                                .values = Strings(item, "values", where),
                                .weight = attribute.Positive("weight")});
  }
  return book;
}

std::optional<Fact> FactBook::Parse(std::string_view sentence) const {
  for (const FactAttribute& attribute : attributes_) {
    for (const std::string_view article : {"a", "an"}) {
      const std::string text = Replaced(attribute.fact, "{a}", article);
      const std::size_t name_at = text.find("{name}");
      const std::size_t value_at = text.find("{value}");
      const std::string before = text.substr(0, name_at);
      const std::string middle =
          text.substr(name_at + 6, value_at - name_at - 6);
      const std::string after = text.substr(value_at + 7);
      if (!sentence.starts_with(before) || !sentence.ends_with(after)) continue;
      const std::size_t middle_at = sentence.find(middle, before.size());
      if (middle_at == std::string_view::npos) continue;
      const std::size_t value_from = middle_at + middle.size();
      if (value_from + after.size() >= sentence.size()) continue;
      const Fact fact{
          .attribute = &attribute,
          .name = std::string(
              sentence.substr(before.size(), middle_at - before.size())),
          .value = std::string(sentence.substr(
              value_from, sentence.size() - after.size() - value_from))};
      if (!fact.name.empty() && fact.Text() == sentence) return fact;
    }
  }
  return std::nullopt;
}

bool ContainsWord(std::string_view text, std::string_view word) {
  if (word.empty()) return false;
  const std::string haystack = Lower(text);
  const std::string needle = Lower(word);
  for (std::size_t at = haystack.find(needle); at != std::string::npos;
       at = haystack.find(needle, at + 1)) {
    const std::size_t end = at + needle.size();
    const bool starts =
        at == 0 || !IsWordByte(haystack[at - 1]) || !IsWordByte(needle.front());
    const bool ends = end == haystack.size() || !IsWordByte(haystack[end]) ||
                      !IsWordByte(needle.back());
    if (starts && ends) return true;
  }
  return false;
}

}  // namespace kvlab
