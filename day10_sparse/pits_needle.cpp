/// \file
/// The experiments with needles that are hard to find.
#include <algorithm>

#include "common/base/error.h"
#include "day10_sparse/pit_subject.h"

namespace kvlab {
namespace {

const char* YesNo(bool yes) { return yes ? "YES" : "NO"; }

}  // namespace

PitReport Straddle(const PitSettings& settings) {
  constexpr int kDepths = 24;
  static constexpr int kKs[] = {32, 8, 4, 3};
  struct Count {
    int prompts = 0;
    int exact = 0;
    int sparse[std::size(kKs)] = {};
  } counts[2];  // in one block, in two
  FirstPrompt(settings);
  PitSubject subject(settings, settings.prompt.needle.context, kAnswerTokens);
  for (int i = 0; i < kDepths; ++i) {
    settings.progress(double(i) / kDepths);
    PromptOptions o = settings.prompt;
    o.needle.depth = 0.1 + 0.8 * i / kDepths;
    const Prompt prompt = NeedlePromptOf(settings, o);
    const TokenRange blocks = NeedleBlocks(settings, prompt);
    Count& count = counts[blocks.first == blocks.last ? 0 : 1];
    const auto found = [&](const std::string& answer) {
      return ContainsWord(answer, prompt.needle->expected) ? 1 : 0;
    };
    subject.Read(prompt.tokens);
    ++count.prompts;
    count.exact += found(subject.AnswerExactly());
    for (std::size_t j = 0; j < std::size(kKs); ++j) {
      count.sparse[j] += found(subject.AnswerSparsely({.k = kKs[j]}));
    }
  }
  PitReport report{.title = StrCat("The needle in one block or across two (",
                                   kDepths, " depths from 0.1 to 0.9, ",
                                   settings.prompt.needle.context, " tokens)"),
                   .columns = "lrrrrrr",
                   .rows = {{"the needle lies in", "prompts", "exact", "k = 32",
                             "k = 8", "k = 4", "k = 3"}}};
  for (const int two : {0, 1}) {
    const Count& c = counts[two];
    std::vector<std::string> row = {two == 0 ? "one block" : "two blocks",
                                    StrCat(c.prompts), StrCat(c.exact)};
    for (const int found : c.sparse) row.push_back(StrCat(found));
    report.rows.push_back(row);
  }
  const auto share = [&](int two) {
    return StrCat(counts[two].sparse[2], " of ", counts[two].prompts);
  };
  report.sentence = StrCat(
      "With k = 4 a single place goes to a probe: ", share(0),
      " are answered when the needle lies in one block, ", share(1),
      " when it lies in two, of which one place holds but one. Blocks are cut "
      "at multiples of 32, not at sentences.");
  return report;
}

PitReport Decoys(const PitSettings& settings) {
  // Near the needle by name, and by what is said of the same name.
  const FactBook book = FactBook::LoadShipped();
  const Prompt plain = FirstPrompt(settings);
  const auto needle = book.Parse(plain.needle->needle);
  if (!needle || needle->attribute->values.empty()) {
    FailUsage(
        "--needle: expected a sentence like \"Zara's favorite food is "
        "ramen.\", found ",
        Printable(settings.prompt.needle.needle),
        "; decoys can only be made for one that the course knows");
  }
  constexpr std::size_t kMost = 48;
  std::vector<std::string> decoys;
  for (std::size_t i = 0; decoys.size() < kMost; ++i) {
    Fact fact = *needle;
    if (i % 3 == 0) {  // Zora's favorite food is soup.
      if (std::ranges::any_of(fact.name,
                              [](unsigned char c) { return c >= 0x80; })) {
        continue;  // a letter of several bytes
      }
      const std::string letters = "aeioubdklmnrst";
      const std::size_t last = fact.name.size() - 1;
      fact.name[std::min(last, 1 + i / 3 % std::max<std::size_t>(1, last))] =
          letters[i / 3 % letters.size()];
    } else if (i % 3 == 1) {  // Zara Ann's favorite food is soup.
      fact.name += " " + book.names()[5 * i % book.names().size()];
    } else {  // Zara plays the piano.
      fact.attribute = &book.attributes()[i % book.attributes().size()];
    }
    if (fact.SameSubject(*needle)) continue;
    const auto& values = fact.attribute->values;
    fact.value = values[(7 * i + 3) % values.size()];
    if (fact.value != needle->value) decoys.push_back(fact.Text());
  }
  constexpr int kKs[] = {32, 8, 4};
  PitReport report{
      .title =
          "Facts that look like the needle: nearly the same name, or the same",
      .columns = "rrrrrr",
      .rows = {
          {"decoys", "exact", "k = 32", "k = 8", "k = 4", "needle's rank"}}};
  PromptOptions full = settings.prompt;
  full.needle.facts.insert(full.needle.facts.end(), decoys.begin(),
                           decoys.end());
  try {
    NeedlePromptOf(settings, full);
  } catch (const Error& error) {
    FailUsage("--context ", full.needle.context, ": no place for ", kMost,
              " decoys; ask for a longer one (", error.what(), ")");
  }
  PitSubject subject(settings, settings.prompt.needle.context, kAnswerTokens);
  int exact_failed = 0, sparse_failed = 0, asked = 0;
  constexpr int kCounts[] = {0, 6, 12, 24, kMost};
  for (std::size_t i = 0; i < std::size(kCounts); ++i) {
    settings.progress(double(i) / std::size(kCounts));
    PromptOptions o = settings.prompt;
    o.needle.facts.insert(o.needle.facts.end(), decoys.begin(),
                          decoys.begin() + kCounts[i]);
    const Prompt prompt = NeedlePromptOf(settings, o);
    const TokenRange needle_blocks = NeedleBlocks(settings, prompt);
    subject.Read(prompt.tokens);
    const auto found = [&](const std::string& answer) {
      return ContainsWord(answer, prompt.needle->expected);
    };
    const bool exact = found(subject.AnswerExactly());
    exact_failed += exact ? 0 : 1;
    std::vector<std::string> row = {StrCat(kCounts[i]), YesNo(exact)};
    for (const int k : kKs) {
      const bool sparse = found(subject.AnswerSparsely({.k = k}));
      row.push_back(YesNo(sparse));
      sparse_failed += exact && !sparse ? 1 : 0;
      asked += exact ? 1 : 0;
    }
    // The worst rank that a head of the last layer gives it where the model has
    // to say the value, after the words that exact attention says before it.
    const std::vector<int> before =
        subject.TokensBefore(prompt.needle->expected);
    const std::ptrdiff_t position =
        std::ssize(prompt.tokens) + std::ssize(before) - 1;
    int worst = 0, blocks = 0;
    SparseTopK stage(
        settings.primitives, {.k = 4},
        std::make_unique<ShowChoices>(
            [&](const SelectionInput& input, const Selection&) {
              if (input.id.layer != settings.model->config.layers - 1 ||
                  input.id.position != position) {
                return;
              }
              blocks = static_cast<int>(input.probes.size());
              int rank = blocks;
              for (int n = needle_blocks.first; n <= needle_blocks.last; ++n) {
                int larger = 0;
                for (int b = 0; b < blocks; ++b) {
                  larger += ComesBefore(input.probes, b, n) ? 1 : 0;
                }
                rank = std::min(rank, larger + 1);
              }
              worst = std::max(worst, rank);
            }));
    subject.Force(stage, before);
    row.push_back(blocks == 0 ? "-" : StrCat(worst, " of ", blocks));
    report.rows.push_back(row);
  }
  report.sentence =
      exact_failed > 0
          ? StrCat(
                "Exact attention itself fails in ", exact_failed, " of ",
                std::size(kCounts),
                " prompts: there the model confuses the names, and no choice "
                "of blocks is to blame. Where it answers, sparse attention "
                "fails in ",
                sparse_failed, " of ", asked, " runs.")
          : StrCat(
                "Exact attention tells the names apart every time; sparse "
                "attention fails in ",
                sparse_failed, " of ", asked,
                " runs. The rank is that of the needle's block by its "
                "probe, where the value must be said, for the head of the "
                "last layer that ranks it worst: k = 4 has one or two places "
                "for probes, k = 8 four.");
  return report;
}

}  // namespace kvlab
