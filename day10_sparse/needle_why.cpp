#include "day10_sparse/needle_why.h"

#include <algorithm>
#include <set>

#include "common/base/error.h"
#include "common/base/text.h"

namespace kvlab {
namespace {

using Fate = ChoiceSummary::Fate;
using Taker = std::pair<int, Fate>;  // a block

std::string CountOf(std::int64_t n, const char* noun) {
  return Count(static_cast<std::uint64_t>(n), noun);
}

/// "block 32", "blocks 31 and 32".
std::string BlockNames(const std::vector<int>& blocks) {
  std::string text = blocks.size() == 1 ? "block " : "blocks ";
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    text += StrCat(i == 0                   ? ""
                   : i + 1 == blocks.size() ? " and "
                                            : ", ",
                   blocks[i]);
  }
  return text;
}

/// "rank 3", "rank 3 to 9".
std::string ProbeRanks(const Fate& fate) {
  return StrCat("rank ", fate.best_probe_rank,
                fate.best_probe_rank == fate.worst_probe_rank
                    ? ""
                    : StrCat(" to ", fate.worst_probe_rank));
}

/// Importance grows with the prompt: as many digits as tell blocks apart.
std::string ImportanceText(const Fate& fate) {
  return StrCat(Fixed(fate.importance, fate.importance < 100 ? 2 : 0),
                ", rank ", fate.importance_rank);
}

/// "block 3 by importance (549, rank 1), 60 times".
std::string TakerText(BlockReason reason, const Taker& taker) {
  const auto& [block, fate] = taker;
  const std::string name = block == ChoiceSummary::kLastBlock
                               ? "the last block"
                               : StrCat("block ", block);
  const std::string times = StrCat(", ", CountOf(fate.taken, "time"));
  switch (reason) {
    case BlockReason::kImportance:
      return StrCat(name, " by importance (", ImportanceText(fate), ')', times);
    case BlockReason::kProbe:
      return StrCat(name, " by probe (", ProbeRanks(fate), ')', times);
    default:
      return StrCat(name, " by recency", times);
  }
}

/// Who came in for one reason, the most frequent first.
std::string TakersBy(BlockReason reason, const ChoiceSummary& choices) {
  constexpr std::size_t kNamed = 3;
  std::vector<Taker> takers;
  for (const auto& [key, fate] : choices.takers) {
    if (key.first == reason) takers.emplace_back(key.second, fate);
  }
  std::ranges::stable_sort(takers, std::greater(), [](const Taker& taker) {
    return taker.second.taken;
  });
  std::string text;
  for (std::size_t i = 0; i < std::min(takers.size(), kNamed); ++i) {
    text += StrCat(i == 0 ? "" : "; ", TakerText(reason, takers[i]));
  }
  if (takers.size() > kNamed) {
    text += StrCat("; and ", CountOf(std::ssize(takers) - std::int64_t{kNamed},
                                     "other block"));
  }
  return text;
}

/// A sentence: who has the places.
std::string Takers(const ChoiceSummary& choices) {
  std::int64_t places = 0, to_last = 0, by_recency = 0;
  for (const auto& [key, fate] : choices.takers) {
    places += fate.taken;
    if (key.second != ChoiceSummary::kLastBlock) continue;
    to_last += fate.taken;
    if (key.first == BlockReason::kRecency) by_recency += fate.taken;
  }
  if (to_last == places && places == choices.choices && by_recency > 0) {
    return StrCat(
        "The only place always went to the last block: recency took "
        "it ",
        CountOf(by_recency, "time"),
        places == by_recency
            ? ""
            : StrCat(", and where it did not, the last block had the "
                     "largest probe"),
        '.');
  }
  std::string text;
  for (const BlockReason reason :
       {BlockReason::kImportance, BlockReason::kProbe, BlockReason::kRecency}) {
    const std::string some = TakersBy(reason, choices);
    if (!some.empty()) text += StrCat(text.empty() ? "" : "; ", some);
  }
  return StrCat(places == choices.choices ? "The only place" : "The places",
                " went to ", text, '.');
}

/// How the needle's own blocks were judged.
std::string Judged(const ChoiceSummary& choices) {
  std::string text;
  for (const auto& [block, fate] : choices.needle_fates) {
    text += StrCat(text.empty() ? "" : " ", "Block ", block, ": ");
    if (fate.importance_rank > 0) {
      text += StrCat("importance ", ImportanceText(fate), " of ",
                     choices.blocks, "; ");
    }
    text += StrCat("probe ", ProbeRanks(fate), ", best in layer ",
                   fate.best_probe_head.first, ", head ",
                   fate.best_probe_head.second);
    if (fate.evicted > 0) {
      text += StrCat("; ", CountOf(fate.evicted, "time"),
                     " its probe got it a place that recency then took");
    }
    text += '.';
  }
  return text;
}

/// "layer 2 (heads 0, 1)".
std::string Readers(const ChoiceSummary& choices) {
  constexpr std::size_t kNamed = 12;
  std::string text;
  int layer = -1;
  std::size_t named = 0;
  for (const auto& reader : choices.readers) {
    if (named++ == kNamed) {
      return StrCat(text, ") and ", choices.readers.size() - kNamed,
                    " heads more");
    }
    text += reader.first == layer
                ? StrCat(", ", reader.second)
                : StrCat(layer < 0 ? "" : "), ", "layer ", reader.first,
                         " (heads ", reader.second);
    layer = reader.first;
  }
  return text + ')';
}

}  // namespace

std::string WhyMissed(const MissedNeedle& run) {
  const ChoiceSummary& c = run.choices;
  if (run.found) return "";
  if (!run.exact_found) {
    return StrCat(
        "exact attention misses it too, so this says nothing about the "
        "selection: ",
        run.raw ? "without its chat template the model does not answer."
                : "the model does not find it in this prompt.");
  }
  if (c.choices == 0) {
    return "nothing was chosen: the answer ended before the first step of "
           "decoding.";
  }
  if (c.needle.empty()) {
    return "exact attention finds it; which blocks hold it is not known, since "
           "the tokenizer writes it in another form.";
  }
  const std::string went = Takers(c);
  if (c.read == 0) {
    std::set<int> layers;
    for (const auto& [layer, head] : c.heads) layers.insert(layer);
    return StrCat("the needle's ", BlockNames(c.needle),
                  c.needle.size() == 1 ? " was" : " were", " never read, in ",
                  CountOf(c.choices, "choice"), " (",
                  CountOf(std::ssize(c.positions), "step"), ", ",
                  CountOf(std::ssize(layers), "layer"), ", ",
                  CountOf(std::ssize(c.heads), "head"), " in all). ", went, ' ',
                  Judged(c));
  }
  return StrCat(
      "the needle's ", BlockNames(c.needle),
      c.needle.size() == 1 ? " was" : " were", " read in ", c.read, " of ",
      CountOf(c.choices, "choice"),
      c.read_all < c.read ? StrCat(", whole in ", c.read_all) : std::string(),
      ", by ", Readers(c), ", and the answer is wrong all the same. ",
      run.sparse_prefill ? "The prompt itself was read in as few blocks, so "
                           "its keys and values are not exact attention's. "
                         : "Other heads or steps needed it, or other blocks, "
                           "and did not have them. ",
      went);
}

}  // namespace kvlab
