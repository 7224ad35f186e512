/// \file
/// The byte-level alphabet of GPT-2: every byte is written as one printable
/// character, so that a vocabulary of any bytes fits a JSON file. Printable
/// Latin-1 bytes stand for themselves, the other 68 for U+0100, U+0101, ... in
/// their order; a space is U+0120. Private to the loader.
#pragma once

#include <string>
#include <string_view>

namespace kvlab {

/// `bytes` written in the alphabet.
std::string ToByteLevel(std::string_view bytes);

/// The bytes that `piece` (UTF-8) stands for. A piece with a character outside
/// the alphabet stands for its own UTF-8 bytes, as in `tokenizers`.
std::string FromByteLevel(std::string_view piece);

}  // namespace kvlab
