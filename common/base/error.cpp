#include "common/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace kvlab {
namespace {

/// Length of the UTF-8 sequence that starts at `text[i]`, 0 if it is broken.
std::size_t Utf8Length(std::string_view text, std::size_t i) {
  const auto byte = [&](std::size_t j) {
    return j < text.size() ? static_cast<unsigned char>(text[j]) : 0u;
  };
  const unsigned first = byte(i);
  std::size_t length = 0;
  unsigned low = 0x80, high = 0xBF;  // bounds of the second byte
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) length = 2;
  if (first >= 0xE0 && first <= 0xEF) {
    length = 3;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    length = 4;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
  }
  if (length == 0 || byte(i + 1) < low || byte(i + 1) > high) return 0;
  for (std::size_t j = 2; j < length; ++j) {
    if ((byte(i + j) & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string Printable(std::string_view text, std::size_t max_bytes) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (out.size() >= max_bytes) return out + "...";
    const auto c = static_cast<unsigned char>(text[i]);
    const std::size_t length = Utf8Length(text, i);
    const bool c1_control = length == 2 && c == 0xC2 &&
                            static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (length == 0 || c < 0x20 || c == 0x7F || c1_control) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02X", c);
      out += hex;
      i += 1;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out;
}

void CheckFailed(const char* file, int line, const std::string& text) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, text.c_str());
  std::abort();
}

}  // namespace kvlab
