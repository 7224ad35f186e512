#include "common/base/text.h"

#include <array>
#include <cstddef>
#include <cstdio>

namespace kvlab {
namespace {

std::string Counted(const std::string& number, std::uint64_t n,
                    std::string_view noun) {
  return number + ' ' + std::string(noun) + (n == 1 ? "" : "s");
}

}  // namespace

std::string HumanBytes(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  double size = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 would be printed as 1024.0.
  while (size >= 1023.95 && unit + 1 < kUnits.size()) {
    size /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", size, kUnits[unit]);
  return text;
}

std::string WithCommas(std::uint64_t n) {
  std::string text = std::to_string(n);
  for (std::size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, 1, ',');
  return text;
}

std::string Count(std::uint64_t n, std::string_view noun) {
  return Counted(std::to_string(n), n, noun);
}

std::string CountWithCommas(std::uint64_t n, std::string_view noun) {
  return Counted(WithCommas(n), n, noun);
}

std::string Fixed(double value, int digits) {
  char text[352];  // the largest double has 309 digits before the point
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace kvlab
