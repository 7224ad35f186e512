/// \file
/// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvlab {

/// Bytes as B, KiB, MiB, GiB or TiB with one digit after the point.
std::string HumanBytes(std::uint64_t bytes);

/// 1234567 -> "1,234,567".
std::string WithCommas(std::uint64_t n);

/// "1 token", "2061 tokens".
std::string Count(std::uint64_t n, std::string_view noun);

/// The same with commas: "2,061 tokens".
std::string CountWithCommas(std::uint64_t n, std::string_view noun);

/// With `digits` after the point: Fixed(0.5, 3) is "0.500".
std::string Fixed(double value, int digits);

}  // namespace kvlab
