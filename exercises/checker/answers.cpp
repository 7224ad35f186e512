#include "exercises/checker/answers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "common/base/error.h"
#include "common/loader/json.h"
#include "exercises/checker/toml_fields.h"

namespace kvlab {
namespace {

/// A scalar as the student wrote it, or would have.
std::string ScalarText(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return *text;
  if (const auto number = node.value_exact<std::int64_t>()) {
    return std::to_string(*number);
  }
  if (const auto number = node.value_exact<double>()) {
    std::array<char, 32> digits;
    const auto end =
        std::to_chars(digits.data(), digits.data() + digits.size(), *number);
    return {digits.data(), end.ptr};
  }
  if (const auto truth = node.value_exact<bool>()) {
    return *truth ? "true" : "false";
  }
  return "?";
}

/// Without blanks around it, and without the brackets of a marker's name.
std::string_view Trimmed(std::string_view text) {
  const auto strip = [&](auto is) {
    while (!text.empty() && is(text.front())) text.remove_prefix(1);
    while (!text.empty() && is(text.back())) text.remove_suffix(1);
  };
  strip(
      [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; });
  if (text.starts_with('[') && text.ends_with(']')) {
    text.remove_prefix(1);
    text.remove_suffix(1);
  }
  return text;
}

std::optional<double> ParseNumber(std::string_view text) {
  text = Trimmed(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size() ||
      !std::isfinite(number)) {
    return std::nullopt;
  }
  return number;
}

bool SameWord(std::string_view a, std::string_view b) {
  return std::ranges::equal(Trimmed(a), Trimmed(b), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

/// The elements that a fact's value has; one unless it is a list.
std::vector<nlohmann::json> Elements(const nlohmann::json& value) {
  if (!value.is_array()) return {value};
  return {value.begin(), value.end()};
}

bool HasNumbers(const Fact& fact) {
  return std::ranges::any_of(Elements(fact.value), [](const auto& element) {
    return element.is_number();
  });
}

bool Agrees(const nlohmann::json& expected, double within,
            const std::string& text) {
  if (!expected.is_number()) {
    return SameWord(expected.get<std::string>(), text);
  }
  const auto number = ParseNumber(text);
  const auto value = expected.get<double>();
  const double size = value == 0 ? 1 : std::abs(value);
  return number && std::abs(*number - value) <= within * size;
}

bool Agrees(const Fact& fact, const Answer& answer) {
  if (fact.ok) return *fact.ok;
  const auto expected = Elements(fact.value);
  if (expected.size() != answer.values.size()) return false;
  const auto agrees = [&](const nlohmann::json& e, const std::string& text) {
    return Agrees(e, fact.within, text);
  };
  return fact.any_order
             ? std::ranges::is_permutation(
                   answer.values, expected,
                   [&](const auto& a, const auto& b) { return agrees(b, a); })
             : std::ranges::equal(expected, answer.values, agrees);
}

/// A float with too few digits, or nearly: the idea is right.
bool IsClose(const Fact& fact, const Answer& answer) {
  constexpr double kClose = 0.02;
  return !fact.ok && fact.within > 0 && fact.value.is_number() &&
         answer.values.size() == 1 &&
         Agrees(fact.value, kClose, answer.values[0]);
}

/// The form that is asked for, if the answer has another.
std::string OtherForm(const Fact& fact, const Answer& answer) {
  if (fact.ok) return "";
  if (fact.value.is_array() && !answer.is_list) {
    return "a list is expected, as [1, 2]";
  }
  if (!fact.value.is_array() && answer.values.size() != 1) {
    return "one value is expected, not a list";
  }
  return "";
}

bool IsAllowed(const Fact& fact, const Answer& answer) {
  return fact.words.empty() ||
         std::ranges::all_of(answer.values, [&](const auto& text) {
           return std::ranges::any_of(fact.words, [&](const auto& word) {
             return SameWord(word, text);
           });
         });
}

std::string Listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

const Answer* FindAnswer(const std::vector<Answer>& answers,
                         std::string_view name) {
  const auto it = std::ranges::find(answers, name, &Answer::name);
  return it == answers.end() ? nullptr : &*it;
}

/// The first value that is no number though one is asked for.
const std::string* NotANumber(const Fact& fact, const Answer& answer) {
  if (fact.ok || !HasNumbers(fact)) return nullptr;
  const auto it = std::ranges::find_if(
      answer.values, [](const auto& text) { return !ParseNumber(text); });
  return it == answer.values.end() ? nullptr : &*it;
}

Judgement JudgeOne(const Fact& fact, const std::vector<Fact>& facts,
                   const std::vector<Answer>& answers) {
  const Answer* answer = FindAnswer(answers, fact.name);
  if (answer == nullptr) {
    return {fact.name, AnswerVerdict::kMissing,
            StrCat("missing: the line \"", fact.name,
                   " = ...\" is gone; put it back")};
  }
  if (answer->is_empty()) {
    return {fact.name, AnswerVerdict::kMissing, "missing: no answer yet"};
  }
  if (const std::string form = OtherForm(fact, *answer); !form.empty()) {
    return {fact.name, AnswerVerdict::kForm,
            StrCat(form, "; you wrote ", answer->Text())};
  }
  if (const std::string* text = NotANumber(fact, *answer)) {
    return {fact.name, AnswerVerdict::kNotANumber,
            StrCat("not a number: \"", Printable(*text),
                   "\"; write digits, with a point before decimals (`answer` "
                   "in gdb computes an expression)")};
  }
  if (Agrees(fact, *answer)) return {fact.name};
  if (!IsAllowed(fact, *answer)) {
    return {fact.name, AnswerVerdict::kWrong,
            StrCat("wrong: you wrote ", answer->Text(),
                   "; write one of: ", Listed(fact.words))};
  }
  for (const Fact& other : facts) {
    const Answer* its = FindAnswer(answers, other.name);
    if (its != nullptr && its != answer && !other.ok && !fact.ok &&
        !Agrees(other, *its) && Agrees(other, *answer) && Agrees(fact, *its)) {
      return {fact.name, AnswerVerdict::kSwapped,
              StrCat("swapped: you wrote ", answer->Text(), "; this and ",
                     other.name, " have each other's answer")};
    }
  }
  if (Fact set = fact; fact.value.is_array()) {
    set.any_order = true;
    if (Agrees(set, *answer)) {
      return {fact.name, AnswerVerdict::kWrong,
              StrCat("the right ones in another order: you wrote ",
                     answer->Text())};
    }
  }
  if (IsClose(fact, *answer)) {
    return {fact.name, AnswerVerdict::kWrong,
            StrCat("close, but not near enough: you wrote ", answer->Text(),
                   ". Give all the digits that gdb prints")};
  }
  return {fact.name, AnswerVerdict::kWrong,
          StrCat("wrong: you wrote ", answer->Text(), ". ", fact.seen)};
}

}  // namespace

std::string Answer::Text() const {
  std::vector<std::string> printable;
  for (const std::string& value : values) {
    printable.push_back(Printable(value));
  }
  const std::string text = Listed(printable);
  return is_list ? "[" + text + "]" : text;
}

std::vector<Answer> ReadAnswers(const std::filesystem::path& file) {
  std::vector<std::pair<std::size_t, Answer>> read;
  const toml::table table = ReadTomlFile(file);
  for (const auto& [key, node] : table) {
    Answer answer{.name = std::string(key.str())};
    if (const toml::array* list = node.as_array()) {
      answer.is_list = true;
      for (const toml::node& element : *list) {
        answer.values.push_back(ScalarText(element));
      }
    } else if (node.is_table()) {
      Fail(PathText(file), ":", node.source().begin.line,
           ": expected lines NAME = VALUE, found a table [", key.str(), "]");
    } else {
      answer.values.push_back(ScalarText(node));
    }
    read.emplace_back(node.source().begin.line, std::move(answer));
  }
  std::ranges::stable_sort(read, {}, [](const auto& r) { return r.first; });
  std::vector<Answer> answers;
  for (auto& [line, answer] : read) answers.push_back(std::move(answer));
  return answers;
}

std::vector<Fact> ParseFacts(const nlohmann::json& facts) {
  if (!facts.is_object() || facts.value("done", false) == false) {
    Fail("the facts are not whole: facts.py did not come to kvlab.done()");
  }
  std::vector<Fact> parsed;
  for (const nlohmann::json& fact : facts.at("facts")) {
    Fact f{.name = fact.at("name").get<std::string>(),
           .value = fact.value("value", nlohmann::json()),
           .within = fact.value("within", 0.0),
           .seen = fact.at("seen").get<std::string>()};
    if (fact.contains("ok")) f.ok = fact.at("ok").get<bool>();
    if (fact.contains("words")) {
      f.words = fact.at("words").get<std::vector<std::string>>();
    }
    f.any_order = fact.value("any_order", false);
    parsed.push_back(std::move(f));
  }
  return parsed;
}

std::vector<Judgement> Judge(const std::vector<Fact>& facts,
                             const std::vector<Answer>& answers) {
  std::vector<Judgement> judgements;
  for (const Answer& answer : answers) {
    const auto fact = std::ranges::find(facts, answer.name, &Fact::name);
    judgements.push_back(
        fact != facts.end()
            ? JudgeOne(*fact, facts, answers)
            : Judgement{answer.name, AnswerVerdict::kNoQuestion,
                        "no question has this name; is it misspelt?"});
  }
  for (const Fact& fact : facts) {
    if (FindAnswer(answers, fact.name) == nullptr) {
      judgements.push_back(JudgeOne(fact, facts, answers));
    }
  }
  return judgements;
}

}  // namespace kvlab
