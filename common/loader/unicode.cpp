#include "common/loader/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "common/base/error.h"

namespace kvlab {
namespace {

using CodePoint = utf8proc_int32_t;

/// Puts every run of combining marks into canonical order. utf8proc does this
/// too, but by exchanging neighbours: a text of a million marks would take
/// hours.
void SortCombiningMarks(std::vector<CodePoint>& codes) {
  const auto combining_class = [](CodePoint code) {
    return utf8proc_get_property(code)->combining_class;
  };
  for (auto run = codes.begin(); run != codes.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, codes.end(), [&](CodePoint code) {
      return combining_class(code) == 0;
    });
    std::stable_sort(run, end, [&](CodePoint a, CodePoint b) {
      return combining_class(a) < combining_class(b);
    });
    run = end;
  }
}

}  // namespace

Utf8Step NextUtf8(std::string_view bytes) {
  using Kind = Utf8Step::Kind;
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return static_cast<unsigned char>(bytes[i]);
  };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {Kind::kCharacter, 1, first};
  if (first < 0xC2 || first > 0xF4) return {Kind::kInvalid, 1};
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  // The second byte's bounds shut out overlong forms, surrogates and code
  // points over U+10FFFF.
  const std::uint32_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const std::uint32_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  std::uint32_t code = first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, i};
    if (byte(i) < (i == 1 ? low : 0x80) || byte(i) > (i == 1 ? high : 0xBF)) {
      return {Kind::kInvalid, i};
    }
    code = code << 6 | (byte(i) & 0x3F);
  }
  return {Kind::kCharacter, length, code};
}

std::optional<std::size_t> FindInvalidUtf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(i));
    if (step.kind != Utf8Step::Kind::kCharacter) return i;
    i += step.length;
  }
  return std::nullopt;
}

std::uint32_t LastCodePoint(std::string_view text) {
  std::size_t start = text.size() - 1;
  while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80)
    --start;
  return NextUtf8(text.substr(start)).code;
}

bool IsWhiteSpace(std::uint32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  if (code == 0x85) return true;
  const auto category = utf8proc_category(static_cast<CodePoint>(code));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool IsWordCharacter(std::uint32_t code) {
  if (code == 0x200C || code == 0x200D) return true;
  // Circled and squared letters: symbols, yet Other_Alphabetic.
  if ((code >= 0x24B6 && code <= 0x24E9) ||
      (code >= 0x1F130 && code <= 0x1F149) ||
      (code >= 0x1F150 && code <= 0x1F169) ||
      (code >= 0x1F170 && code <= 0x1F189)) {
    return true;
  }
  switch (utf8proc_category(static_cast<CodePoint>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

std::string ToNfc(std::string_view text) {
  // Below U+0300 nothing combines and nothing is replaced, and those code
  // points have lead bytes below 0xCC: most text is done after this look.
  if (std::all_of(text.begin(), text.end(), [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte < 0xCC;
      })) {
    return std::string(text);
  }
  std::vector<CodePoint> codes;
  codes.reserve(text.size() + 4);
  int boundary = 0;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = NextUtf8(text.substr(i));
    KVLAB_CHECK(step.kind == Utf8Step::Kind::kCharacter);
    i += step.length;
    CodePoint parts[32];  // the longest canonical decomposition has 4
    const auto count = utf8proc_decompose_char(
        static_cast<CodePoint>(step.code), parts, std::size(parts),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE),
        &boundary);
    KVLAB_CHECK_GE(count, 1);
    KVLAB_CHECK_LE(count, std::ssize(parts));
    codes.insert(codes.end(), parts, parts + count);
  }
  SortCombiningMarks(codes);
  const auto length = utf8proc_normalize_utf32(
      codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  KVLAB_CHECK_GE(length, 0);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    utf8proc_uint8_t bytes[4];
    const auto size =
        utf8proc_encode_char(codes[static_cast<std::size_t>(i)], bytes);
    out.append(reinterpret_cast<const char*>(bytes),
               static_cast<std::size_t>(size));
  }
  return out;
}

}  // namespace kvlab
