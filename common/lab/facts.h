/// \file
/// The names, attributes and questions that needle prompts are made of.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// One kind of fact: "{name}'s favorite food is {value}." and what can be
/// asked about it. "{a}" in the text stands for "a" or "an"; a kind with a
/// "{noun}" is about anything ("{name}'s favorite {noun} is {value}.").
struct FactAttribute {
  std::string id;
  std::string fact;
  std::vector<std::string> questions;  ///< the first is the default
  std::vector<std::string> values;
  double weight = 1;  ///< relative frequency
};

/// A fact taken apart.
struct Fact {
  const FactAttribute* attribute = nullptr;
  std::string name;
  std::string value;
  std::string noun = {};  ///< of a kind with a {noun}

  /// True if both say something about the same thing of the same name.
  bool SameSubject(const Fact& other) const {
    return attribute == other.attribute && name == other.name &&
           noun == other.noun;
  }

  /// "Zara's favorite food is ramen."
  std::string Text() const;
  /// "What is Zara's favorite food?"
  std::string Question() const { return Questions().front(); }
  /// Every wording of it that the lab model knows.
  std::vector<std::string> Questions() const;
};

/// common/lab_model/facts.json: what the lab model was trained to read, and
/// the filler of needle prompts for every model.
class FactBook {
 public:
  /// Reads the file of the shipped model. Throws Error.
  static FactBook LoadShipped();

  const std::filesystem::path& path() const { return path_; }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<FactAttribute>& attributes() const { return attributes_; }

  /// Takes a sentence apart that is worded like one of the attributes; if it
  /// fits several, the one with the most words in common.
  std::optional<Fact> Parse(std::string_view sentence) const;

 private:
  std::filesystem::path path_;
  std::vector<std::string> names_;
  std::vector<FactAttribute> attributes_;
  std::vector<FactAttribute> open_attributes_;  // about a {noun}; no values
};

/// True if `word` (one or several words) stands in `text` as a whole word,
/// letter case aside (ASCII).
bool ContainsWord(std::string_view text, std::string_view word);

}  // namespace kvlab
