#include "common/loader/byte_level.h"

#include <array>
#include <cstdint>

#include "common/loader/unicode.h"

namespace kvlab {
namespace {

struct Alphabet {
  std::array<std::uint32_t, 256> code_of_byte{};
  std::array<int, 0x144> byte_of_code{};  // -1: not a letter of the alphabet
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  for (int& byte : alphabet.byte_of_code) byte = -1;
  std::uint32_t next = 0x100;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) ||
                           (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const std::uint32_t code = printable ? byte : next++;
    alphabet.code_of_byte[byte] = code;
    alphabet.byte_of_code[code] = static_cast<int>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

std::string ToByteLevel(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const std::uint32_t code =
        kAlphabet.code_of_byte[static_cast<unsigned char>(c)];
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else {  // all letters of the alphabet have at most two bytes
      out += static_cast<char>(0xC0 | code >> 6);
      out += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return out;
}

std::string FromByteLevel(std::string_view piece) {
  std::string out;
  out.reserve(piece.size());
  for (std::size_t i = 0; i < piece.size();) {
    const Utf8Step step = NextUtf8(piece.substr(i));
    i += step.length;
    if (step.kind != Utf8Step::Kind::kCharacter ||
        step.code >= kAlphabet.byte_of_code.size() ||
        kAlphabet.byte_of_code[step.code] < 0) {
      return std::string(piece);
    }
    out += static_cast<char>(kAlphabet.byte_of_code[step.code]);
  }
  return out;
}

}  // namespace kvlab
