/// \file
/// Cutting added tokens ("<|im_end|>") out of a text. Private to the loader.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// An entry of `added_tokens`, as far as it bears on encoding.
struct AddedToken {
  int id = 0;
  std::string content;       ///< what is looked for; not empty
  bool single_word = false;  ///< not where it touches a word character
  bool lstrip = false;       ///< takes the white space to its left
  bool rstrip = false;       ///< and to its right
};

/// A part of a text: an added token (its id) or the text between two.
struct TextPart {
  std::optional<int> id;
  std::string_view text;  ///< empty where there is an id
};

/// A set of added tokens that are searched for together.
class AddedTokenSet {
 public:
  AddedTokenSet() = default;

  /// Of two tokens with the same content the first one counts.
  explicit AddedTokenSet(std::vector<AddedToken> tokens);

  /// Cuts `text` (valid UTF-8) at the tokens in it, from left to right, the
  /// longest of those that start at the same place.
  std::vector<TextPart> Cut(std::string_view text) const;

 private:
  const AddedToken* LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // by content
  bool starts_[256] = {};           // bytes that some token starts with
};

}  // namespace kvlab
