/// \file
/// The needle experiment's prompt: many facts, one of them asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/lab/facts.h"
#include "common/loader/tokenizer.h"

namespace kvlab {

/// What --context, --depth, --seed, --needle, --question and --fact say.
struct NeedleOptions {
  int context = 2061;  ///< tokens of the whole prompt, template included
  double depth = 0.5;  ///< where the needle stands: 0 first, 1 last
  std::uint64_t seed = 1;
  std::string needle = "Zara's favorite food is ramen.";
  std::string question = {};            ///< empty: the one that fits the needle
  std::vector<std::string> facts = {};  ///< the student's own, among the filler
};

/// A prompt ready to run.
struct NeedlePrompt {
  std::string text;         ///< as the tokenizer sees it
  std::vector<int> tokens;  ///< exactly options.context of them
  std::string needle;  ///< the sentence; a typographic apostrophe made plain
  std::string question;
  std::string expected;  ///< the value that the answer must hold
  /// What makes YES or NO say less than it seems, each one sentence.
  std::vector<std::string> warnings;
};

/// Turns the user's message (facts, question) into the text of a prompt: a chat
/// template, or the bare completion form of --raw.
using RenderPrompt = std::function<std::string(const std::string& facts,
                                               const std::string& question)>;

/// Builds a prompt of exactly options.context tokens: random facts from the
/// book with the needle among them at the asked depth. The same options give
/// the same prompt on every machine. No filler holds the expected value or says
/// something else about what is asked. Throws a usage Error on a depth outside
/// 0 ... 1, a needle or fact that is no sentence, a needle that needs
/// --question, a context too short for the needle.
NeedlePrompt BuildNeedlePrompt(const NeedleOptions& options,
                               const FactBook& book, const Tokenizer& tokenizer,
                               const RenderPrompt& render);

/// Tokens `first` to `last`, both included.
struct TokenRange {
  int first = 0;
  int last = 0;
};

/// The tokens that hold the first place of `text` among `tokens`; nullopt if it
/// is not there, as when the tokenizer writes it in another form.
std::optional<TokenRange> FindTokens(const Tokenizer& tokenizer,
                                     std::span<const int> tokens,
                                     std::string_view text);

}  // namespace kvlab
