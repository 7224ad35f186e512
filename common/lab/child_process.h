/// \file
/// Running another program and taking what it prints.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// How a program ended, and what it printed.
struct ChildResult {
  int exit_code = 0;  ///< 128 + N if signal N ended it
  std::string out;
  std::string err;
};

/// Runs the program `command[0]`, looked up in PATH, with the other words as
/// its arguments: no shell comes between, so no word needs quoting. It reads
/// `input` as its standard input. Returns nothing if there is no such program.
/// Throws Error if it cannot be run for another reason.
std::optional<ChildResult> RunChild(const std::vector<std::string>& command,
                                    std::string_view input);

/// The same, reading the regular file `input`.
std::optional<ChildResult> RunChildOnFile(
    const std::vector<std::string>& command,
    const std::filesystem::path& input);

}  // namespace kvlab
