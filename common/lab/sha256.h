/// \file
/// SHA-256 sums of files, as sha256sum prints them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvlab {

inline constexpr std::size_t kSha256Digits = 64;  // 4 bits a digit

/// The 64 digits that `line` begins with, in lower case; "" if it does not.
std::string LeadingSha256(std::string_view line);

/// The SHA-256 of a file. Throws Error.
std::string Sha256(const std::filesystem::path& path);

}  // namespace kvlab
