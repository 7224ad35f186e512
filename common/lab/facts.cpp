#include "common/lab/facts.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

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
  text = Replaced(std::move(text), "{noun}", noun);
  return Replaced(Replaced(text, "{name}", name), "{value}", value);
}

std::vector<std::string> Fact::Questions() const {
  std::vector<std::string> questions;
  for (const std::string& question : attribute->questions) {
    questions.push_back(
        Replaced(Replaced(question, "{noun}", noun), "{name}", name));
  }
  return questions;
}

FactBook FactBook::LoadShipped() {
  const std::filesystem::path file =
      std::filesystem::path(KVLAB_LAB_MODEL_DIR) / "facts.json";
  const std::string where = PathText(file);
  const Json json = ReadJsonFile(file);
  const JsonFields fields(json, where);
  FactBook book;
  book.path_ = file;
  book.names_ = Strings(json, "names", where);
  const auto list = [&](const char* field) -> const Json& {
    const Json* attributes = fields.Find(field);
    if (attributes == nullptr || !attributes->is_array()) {
      fields.Refuse(field, "a list", "none");
    }
    return *attributes;
  };
  for (const Json& item : list("attributes")) {
    const JsonFields attribute(item, where, "attributes.");
    book.attributes_.push_back({.id = attribute.String("id"),
                                .fact = attribute.String("fact"),
                                .questions = Strings(item, "questions", where),
                                .values = Strings(item, "values", where),
                                .weight = attribute.Positive("weight")});
  }
  for (const Json& item : list("open_attributes")) {
    const JsonFields attribute(item, where, "open_attributes.");
    book.open_attributes_.push_back(
        {.id = attribute.String("id"),
         .fact = attribute.String("fact"),
         .questions = Strings(item, "questions", where),
         .values = {}});
  }
  return book;
}

namespace {

/// A template matched: the fact, and how many of its letters are not a place.
struct Match {
  Fact fact;
  std::size_t letters = 0;
};

/// Fits `sentence` to one template: its literal parts must follow one another,
/// the places between them take what lies there.
std::optional<Match> MatchTemplate(const FactAttribute& attribute,
                                   std::string_view sentence) {
  Match match;
  match.fact.attribute = &attribute;
  for (const std::string_view article : {"a", "an"}) {
    const std::string text = Replaced(attribute.fact, "{a}", article);
    std::map<std::string_view, std::string> places;
    std::string_view left = text;
    std::string_view rest = sentence;
    match.letters = 0;
    bool fits = true;
    while (!left.empty() && fits) {
      const std::size_t place_end =
          left.find('}') + 1;  // every part: {place}...
      const std::string_view place = left.substr(0, place_end);
      left.remove_prefix(place_end);
      const std::string_view literal = left.substr(0, left.find('{'));
      left.remove_prefix(literal.size());
      match.letters += literal.size();
      const std::size_t at =
          left.empty() ? rest.size() - literal.size() : rest.find(literal);
      fits = literal.size() < rest.size() && at != std::string_view::npos &&
             at > 0 && rest.substr(at, literal.size()) == literal;
      if (!fits) break;
      places[place] = rest.substr(0, at);
      rest.remove_prefix(at + literal.size());
    }
    if (!fits) continue;
    match.fact.name = places["{name}"];
    match.fact.noun = places["{noun}"];
    match.fact.value = places["{value}"];
    if (match.fact.Text() == sentence) return match;  // "a" or "an" as it must
  }
  return std::nullopt;
}

}  // namespace

std::optional<Fact> FactBook::Parse(std::string_view sentence) const {
  std::optional<Match> best;
  for (const auto* kinds : {&attributes_, &open_attributes_}) {
    for (const FactAttribute& attribute : *kinds) {
      const std::optional<Match> match = MatchTemplate(attribute, sentence);
      if (match && (!best || match->letters > best->letters)) best = match;
    }
  }
  if (!best) return std::nullopt;
  return best->fact;
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
