#include "exercises/checker/yours.h"

#include <algorithm>
#include <cctype>

#include "common/base/error.h"

namespace kvlab {
namespace {

constexpr std::string_view kMarker = "// [yours]";

struct Line {
  int number;
  std::string_view text;
};

std::vector<Line> LinesOf(std::string_view text) {
  std::vector<Line> lines;
  int number = 1;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    while (!line.empty() &&
           std::isspace(static_cast<unsigned char>(line.back())) != 0) {
      line.remove_suffix(1);
    }
    lines.push_back({number++, line});
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  // An empty line more or less at the end changes nothing.
  while (!lines.empty() && lines.back().text.empty()) lines.pop_back();
  return lines;
}

/// The lines outside of the regions, the markers among them.
std::vector<Line> Fixed(std::string_view text) {
  std::vector<Line> fixed;
  bool yours = false;
  for (const Line& line : LinesOf(text)) {
    const bool marker = line.text.find(kMarker) != std::string_view::npos;
    if (marker || !yours) fixed.push_back(line);
    if (marker) yours = !yours;
  }
  return fixed;
}

bool IsWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/// `text` with blanks in place of comments and of what stands in quotes, but
/// for the names of included files, in which "a//b" becomes "a/b".
std::string CodeAlone(std::string_view text) {
  std::string code;
  enum { kCode, kLineComment, kComment, kQuoted } state = kCode;
  char quote = 0;
  bool include = false;  // the line is one
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    char out = c;
    if (c == '\n') {
      if (state != kComment) state = kCode;
      include = false;
    } else if (state == kLineComment) {
      out = ' ';
    } else if (state == kComment) {
      out = ' ';
      if (c == '*' && next == '/') {
        state = kCode;
        ++i;
      }
    } else if (state == kQuoted) {
      if (c == quote) {
        state = kCode;
      } else if (include) {
        if (c == '/' && next == '/') continue;
      } else {
        if (c == '\\') ++i;
        out = ' ';
      }
    } else if (c == '#') {
      include = text.substr(i).starts_with("#include") ||
                text.substr(i).starts_with("# include");
    } else if (c == '/' && (next == '/' || next == '*')) {
      state = next == '/' ? kLineComment : kComment;
      ++i;
      out = ' ';
    } else if (c == '"' || (c == '\'' && !IsWordCharacter(text[i - (i > 0)]))) {
      quote = c;
      state = kQuoted;
    }
    code += out;
  }
  return code;
}

/// `word` that is no part of a longer one: where it begins or ends with a
/// letter, no other letter stands beside it.
bool HasWord(std::string_view line, std::string_view word) {
  const auto joined = [](char a, char b) {
    return IsWordCharacter(a) && IsWordCharacter(b);
  };
  for (std::size_t at = line.find(word); at != std::string_view::npos;
       at = line.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    if ((at == 0 || !joined(line[at - 1], word.front())) &&
        (end == line.size() || !joined(word.back(), line[end]))) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::optional<SourceFault> ChangedOutsideYours(std::string_view starter,
                                               std::string_view student) {
  const std::vector<Line> expected = Fixed(starter);
  const std::vector<Line> found = Fixed(student);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (i < found.size() && expected[i].text == found[i].text) continue;
    return SourceFault{
        i < found.size() ? found[i].number
                         : static_cast<int>(LinesOf(student).size()),
        StrCat("only the lines between two // [yours] may be changed; expected "
               "\"",
               Printable(expected[i].text), "\", found ",
               i < found.size() ? StrCat("\"", Printable(found[i].text), "\"")
                                : "the end of the file")};
  }
  if (found.size() > expected.size()) {
    return SourceFault{
        found[expected.size()].number,
        StrCat("only the lines between two // [yours] may be changed; expected "
               "the end of the file, found \"",
               Printable(found[expected.size()].text), "\"")};
  }
  return std::nullopt;
}

std::optional<SourceFault> ForbiddenWord(
    std::string_view student, const std::vector<std::string>& words) {
  const std::string code = CodeAlone(student);
  for (const Line& line : LinesOf(code)) {
    for (const std::string& word : words) {
      if (HasWord(line.text, word)) {
        return SourceFault{line.number,
                           StrCat("\"", word,
                                  "\" may not be used here: the exercise is to "
                                  "write what it does")};
      }
    }
  }
  return std::nullopt;
}

}  // namespace kvlab
