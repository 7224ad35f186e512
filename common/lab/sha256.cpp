#include "common/lab/sha256.h"

#include <cctype>
#include <optional>
#include <vector>

#include "common/base/error.h"
#include "common/lab/child_process.h"

namespace kvlab {

std::string LeadingSha256(std::string_view line) {
  std::string sum(line.substr(0, kSha256Digits));
  for (char& c : sum) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isxdigit(byte) == 0) return "";
    c = static_cast<char>(std::tolower(byte));
  }
  return sum.size() == kSha256Digits ? sum : "";
}

std::string Sha256(const std::filesystem::path& path) {
  // By the program that every system has for it: no library to install, and
  // none to cross-compile. The file is its standard input, so no file name is
  // ever taken for an option.
  using Command = std::vector<std::string>;
  for (const Command& command :
       {Command{"sha256sum"}, Command{"shasum", "-a", "256"}}) {
    const std::optional<ChildResult> result = RunChildOnFile(command, path);
    if (!result) continue;
    std::string sum = LeadingSha256(result->out);
    if (result->exit_code != 0 || sum.empty()) {
      Fail(command[0], ": expected a SHA-256 sum and exit code 0, found \"",
           Printable(result->out), "\" and exit code ", result->exit_code);
    }
    return sum;
  }
  Fail("found neither sha256sum nor shasum; install coreutils");
}

}  // namespace kvlab
