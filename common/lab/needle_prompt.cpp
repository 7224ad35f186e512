#include "common/lab/needle_prompt.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "common/base/error.h"
#include "common/loader/json.h"

namespace kvlab {
namespace {

/// A sentence of the haystack and its length in tokens, the space before it
/// included.
struct Sentence {
  std::string text;
  int tokens = 0;
};

/// An endless supply of different random facts. Distributions of <random>
/// differ between libraries, so only the generator itself is used.
class FactSource {
 public:
  FactSource(const FactBook& book, const Tokenizer& tokenizer,
             std::uint64_t seed)
      : book_(book), tokenizer_(tokenizer), random_(seed) {
    for (const FactAttribute& a : book.attributes()) total_weight_ += a.weight;
  }

  /// Never give a fact about this attribute and name, or holding this value.
  void Exclude(const std::optional<Fact>& fact, std::string value) {
    if (fact) used_.insert({fact->attribute, fact->name});
    forbidden_value_ = std::move(value);
  }

  /// A fact not given before; nullopt if none was found.
  std::optional<Sentence> Next() {
    for (int attempt = 0; attempt < 1000; ++attempt) {
      const FactAttribute& attribute = RandomAttribute();
      const Fact fact{.attribute = &attribute,
                      .name = Pick(book_.names()),
                      .value = Pick(attribute.values)};
      std::string text = fact.Text();
      if (ContainsWord(text, forbidden_value_)) continue;
      if (!used_.insert({&attribute, fact.name}).second) continue;
      const auto tokens =
          static_cast<int>(tokenizer_.Encode(" " + text).size());
      return Sentence{std::move(text), tokens};
    }
    return std::nullopt;
  }

  std::size_t Random(std::size_t below) { return random_() % below; }

 private:
  const std::string& Pick(const std::vector<std::string>& list) {
    return list[Random(list.size())];
  }

  const FactAttribute& RandomAttribute() {
    // 53 random bits: a double in [0, 1).
    double left =
        static_cast<double>(random_() >> 11) * 0x1p-53 * total_weight_;
    for (const FactAttribute& attribute : book_.attributes()) {
      left -= attribute.weight;
      if (left < 0) return attribute;
    }
    return book_.attributes().back();
  }

  const FactBook& book_;
  const Tokenizer& tokenizer_;
  std::mt19937_64 random_;
  double total_weight_ = 0;
  std::set<std::pair<const FactAttribute*, std::string>> used_;
  std::string forbidden_value_;
};

/// The last word of a sentence without its full stop: what an answer to a
/// needle of unknown wording must hold.
std::string LastWord(std::string_view sentence) {
  while (!sentence.empty() && std::string_view(" .!?\n").find(
                                  sentence.back()) != std::string_view::npos) {
    sentence.remove_suffix(1);
  }
  return std::string(sentence.substr(sentence.find_last_of(' ') + 1));
}

/// A needle or fact of the student's own as it goes into the prompt. Text that
/// was pasted has typographic apostrophes, which the filler has not.
std::string OwnSentence(const char* option, const std::string& asked) {
  constexpr std::string_view kQuote = "\u2019";
  std::string text;
  for (std::string_view rest = asked; !rest.empty();) {
    const std::size_t end = std::min(rest.find(kQuote), rest.size());
    text += rest.substr(0, end);
    rest.remove_prefix(end);
    if (rest.empty()) break;
    text += '\'';
    rest.remove_prefix(kQuote.size());
  }
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos ||
      std::string_view(".!?").find(text[end]) == std::string_view::npos) {
    FailUsage(option, " \"", Printable(text),
              "\": expected a sentence with a full stop at its end");
  }
  return text;
}

/// What a student may want to know before believing a YES or NO.
std::vector<std::string> Warnings(const NeedleOptions& options,
                                  const FactBook& book,
                                  const std::optional<Fact>& needle,
                                  const NeedlePrompt& prompt) {
  std::vector<std::string> warnings;
  if (needle && !options.question.empty() &&
      std::ranges::count(needle->Questions(), options.question) == 0) {
    warnings.push_back(
        StrCat("the question may ask for something else than the needle; YES "
               "only says that \"",
               Printable(prompt.expected), "\" is in the answer"));
  }
  for (const std::string& text : options.facts) {
    const std::optional<Fact> fact = book.Parse(text);
    if (fact && needle && fact->SameSubject(*needle)) {
      warnings.push_back(StrCat("--fact \"", Printable(text),
                                "\" says something else about what is asked"));
    } else if (ContainsWord(text, prompt.expected)) {
      warnings.push_back(StrCat("--fact \"", Printable(text),
                                "\" holds the value that is looked for"));
    }
  }
  return warnings;
}

/// The sentences joined by spaces, the needle at its depth and the student's
/// facts spread evenly.
std::string JoinFacts(const std::vector<Sentence>& filler,
                      const NeedleOptions& options) {
  int filler_tokens = 0;
  for (const Sentence& s : filler) filler_tokens += s.tokens;
  const double needle_at = options.depth * filler_tokens;

  std::vector<std::pair<double, std::string>> marks;  // token offset, sentence
  for (std::size_t i = 0; i < options.facts.size(); ++i) {
    const double share = (static_cast<double>(i) + 0.5) /
                         static_cast<double>(options.facts.size());
    marks.emplace_back(share * filler_tokens, options.facts[i]);
  }
  marks.emplace_back(needle_at, options.needle);
  std::ranges::stable_sort(
      marks, [](const auto& a, const auto& b) { return a.first < b.first; });

  std::string joined;
  const auto add = [&](const std::string& sentence) {
    if (!joined.empty()) joined += ' ';
    joined += sentence;
  };
  std::size_t mark = 0;
  int offset = 0;
  for (const Sentence& s : filler) {
    while (mark < marks.size() && marks[mark].first <= offset) {
      add(marks[mark++].second);
    }
    add(s.text);
    offset += s.tokens;
  }
  while (mark < marks.size()) add(marks[mark++].second);
  return joined;
}

}  // namespace

NeedlePrompt BuildNeedlePrompt(const NeedleOptions& asked, const FactBook& book,
                               const Tokenizer& tokenizer,
                               const RenderPrompt& render) {
  NeedleOptions options = asked;
  options.needle = OwnSentence("--needle", options.needle);
  for (std::string& fact : options.facts) fact = OwnSentence("--fact", fact);
  if (!(options.depth >= 0 && options.depth <= 1)) {
    FailUsage("--depth ", options.depth,
              ": expected a share between 0 (needle first) and 1 (last)");
  }
  const std::optional<Fact> needle = book.Parse(options.needle);
  NeedlePrompt prompt;
  prompt.needle = options.needle;
  prompt.expected = needle ? needle->value : LastWord(options.needle);
  prompt.question = options.question;
  if (prompt.question.empty()) {
    if (!needle) {
      FailUsage("--needle \"", Printable(options.needle),
                "\": its question does not follow from it; word it like "
                "\"Zara lives in Paris.\" or \"Zara's favorite food is "
                "ramen.\" (more in ",
                PathText(book.path()), "), or add --question");
    }
    prompt.question = needle->Question();
  }
  prompt.warnings = Warnings(options, book, needle, prompt);

  FactSource source(book, tokenizer, options.seed);
  source.Exclude(needle, prompt.expected);
  std::vector<Sentence> filler;
  const auto encode = [&] {
    prompt.text = render(JoinFacts(filler, options), prompt.question);
    prompt.tokens = tokenizer.Encode(prompt.text);
    return static_cast<int>(prompt.tokens.size());
  };

  int missing = options.context - encode();
  if (missing < 0) {
    FailUsage("--context ", options.context,
              ": the needle, the question and the template alone take ",
              options.context - missing, " tokens");
  }
  // Fill up to where no further fact fits, keeping the rejected ones: sorted by
  // length, they are what the last gap is closed with.
  std::map<int, std::vector<Sentence>> spare;
  while (true) {
    std::optional<Sentence> next = source.Next();
    if (!next) {
      FailUsage("--context ", options.context,
                ": facts.json has no more different facts; the longest prompt "
                "it fills has about ",
                options.context - missing, " tokens");
    }
    if (next->tokens > missing) {
      spare[next->tokens].push_back(std::move(*next));
      break;
    }
    missing -= next->tokens;
    filler.push_back(std::move(*next));
  }
  for (int i = 0; i < 200; ++i) {
    std::optional<Sentence> next = source.Next();
    if (!next) break;
    spare[next->tokens].push_back(std::move(*next));
  }

  // Close the gap: exchange a fact for one that is longer (or shorter) by what
  // is missing, or append one of just that length. Lengths add up for every
  // tokenizer that splits at spaces; the true count decides.
  for (int attempt = 0; attempt < 400; ++attempt) {
    missing = options.context - encode();
    if (missing == 0) return prompt;
    const auto fits = spare.find(missing);
    if (fits != spare.end() && !fits->second.empty()) {
      filler.push_back(std::move(fits->second.back()));
      fits->second.pop_back();
      continue;
    }
    if (filler.empty()) break;
    // Not always the whole gap at once: a step of one token lets a later
    // attempt find a partner.
    const int step = attempt % 2 == 0 ? missing : (missing > 0 ? 1 : -1);
    Sentence& chosen = filler[source.Random(filler.size())];
    const auto partner = spare.find(chosen.tokens + step);
    if (partner == spare.end() || partner->second.empty()) continue;
    std::swap(chosen, partner->second.back());
    const Sentence back = std::move(partner->second.back());
    partner->second.pop_back();
    spare[back.tokens].push_back(back);
  }
  FailUsage("--context ", options.context,
            ": no choice of facts gives exactly this many tokens; the nearest "
            "found has ",
            prompt.tokens.size(), "; ask for another length");
}

std::optional<TokenRange> FindTokens(const Tokenizer& tokenizer,
                                     std::span<const int> tokens,
                                     std::string_view text) {
  std::string bytes;
  std::vector<std::size_t> ends;  // of each token in `bytes`
  for (const int id : tokens) {
    bytes += tokenizer.TokenBytes(id);
    ends.push_back(bytes.size());
  }
  const std::size_t at = bytes.find(text);
  if (at == std::string::npos || text.empty()) return std::nullopt;
  const auto token = [&](std::size_t byte) {
    return static_cast<int>(std::ranges::upper_bound(ends, byte) -
                            ends.begin());
  };
  return TokenRange{token(at), token(at + text.size() - 1)};
}

}  // namespace kvlab
