/// \file
/// Splitting text into words by the regular expressions of a tokenizer.json.
/// Private to the loader.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace kvlab {

/// The pattern that GPT-2's ByteLevel pre-tokenizer has built in.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+)"
    R"(|\s+(?!\S)|\s+)";

/// Rewrites a pattern in the dialect of `tokenizers` (Oniguruma, Ruby syntax,
/// UTF-8) for PCRE2 with UTF and UCP. What the two read differently and what
/// tokenizer files have no use for (anchors, back references, nested classes,
/// \w, \h, ...) throws Error, its text to follow "field: ".
std::string OnigurumaToPcre2(std::string_view pattern);

/// Which characters are letters or digits is up to the installed PCRE2: 10.42
/// knows Unicode 14, `tokenizers` 0.22 knows 16. Characters that came in
/// between (new ideographs, a few rare scripts) may be cut differently.
///
/// One Split step: every match is a piece of its own, and so is what stands
/// between matches (behavior "Isolated"). Immutable, so safe to use from
/// several threads.
class SplitPattern {
 public:
  using Emit = std::function<void(std::string_view piece)>;

  /// `pattern` is in Oniguruma's dialect. Throws Error, its text to follow
  /// "field: ".
  explicit SplitPattern(std::string_view pattern);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  /// Calls `emit` with the pieces of `text` (valid UTF-8) in order; none is
  /// empty, and joined they are `text`. Throws Error if the match takes more
  /// steps or memory than any sane pattern needs.
  void Split(std::string_view text, const Emit& emit) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace kvlab
