/// \file
/// The few Unicode rules a tokenizer needs. Private to the loader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvlab {

/// What stands at the start of some bytes.
struct Utf8Step {
  enum class Kind {
    kCharacter,   ///< one whole character
    kInvalid,     ///< bytes that no following byte can make a character
    kIncomplete,  ///< the text ends inside a character
  };
  Kind kind;
  std::size_t length;      ///< bytes of the character or of the broken part
  std::uint32_t code = 0;  ///< the code point of a whole character
};

/// Looks at the start of `bytes` (not empty). A broken part is the "maximal
/// subpart" of the Unicode standard, section 3.9: the longest run of bytes that
/// could have begun a character, or else one byte.
Utf8Step NextUtf8(std::string_view bytes);

/// Position of the first byte that belongs to no character, if any.
std::optional<std::size_t> FindInvalidUtf8(std::string_view text);

/// The code point that ends just before the end of `text` (valid UTF-8, not
/// empty).
std::uint32_t LastCodePoint(std::string_view text);

/// The property White_Space: what `\s` means in `tokenizers`. (PCRE2's own `\s`
/// adds U+180E.)
bool IsWhiteSpace(std::uint32_t code);

/// What `\w` means in Rust's regex crate: Alphabetic, marks, decimal digits,
/// connectors and the two joiners.
bool IsWordCharacter(std::uint32_t code);

/// `text` (valid UTF-8) in Unicode's normalisation form C.
std::string ToNfc(std::string_view text);

}  // namespace kvlab
