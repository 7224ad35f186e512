/// \file
/// A student's answers, and what a run of the program says to them.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// One line of answers.toml.
struct Answer {
  std::string name;
  std::vector<std::string> values = {};  ///< one, or the elements of a list
  bool is_list = false;

  /// Nothing was written yet.
  bool is_empty() const { return values.empty() || values == kNothing; }
  /// As the student may be shown it.
  std::string Text() const;

 private:
  inline static const std::vector<std::string> kNothing = {""};
};

/// Reads answers.toml. Throws Error naming the line that is no TOML.
std::vector<Answer> ReadAnswers(const std::filesystem::path& file);

/// What a run of the student's program says about one question: its answer, or,
/// where many are right, whether the student's is.
struct Fact {
  std::string name;
  nlohmann::json value = {};    ///< a number, a string, or a list of these
  double within = 0;            ///< relative tolerance of numbers
  std::optional<bool> ok = {};  ///< instead of a value
  std::vector<std::string> words = {};  ///< that may be written; empty: any
  bool any_order = false;               ///< a list is a set
  std::string seen;                     ///< what a wrong answer is shown
};

/// The facts as exercises/gdb/kvlab.py writes them. Throws Error.
std::vector<Fact> ParseFacts(const nlohmann::json& facts);

/// How an answer stands.
enum class AnswerVerdict {
  kRight,
  kMissing,
  kForm,  ///< a list where one value is expected, or the other way round
  kNotANumber,
  kWrong,
  kSwapped,    ///< it answers another question, and that one's this
  kNoQuestion  ///< nothing asks for it
};

/// An answer judged.
struct Judgement {
  std::string name;
  AnswerVerdict verdict = AnswerVerdict::kRight;
  std::string text = {};  ///< for the student; empty if right
};

/// A judgement for each answer, in order, then for the facts without one.
std::vector<Judgement> Judge(const std::vector<Fact>& facts,
                             const std::vector<Answer>& answers);

}  // namespace kvlab
