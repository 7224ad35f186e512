/// \file
/// The experiments with importance, and with heads that share a KV head.
#include <algorithm>

#include "common/base/error.h"
#include "common/base/text.h"
#include "day10_sparse/pit_subject.h"

namespace kvlab {

PitReport EarlyBias(const PitSettings& settings) {
  const Prompt prompt = FirstPrompt(settings);
  const auto n = static_cast<int>(prompt.tokens.size());
  PitSubject subject(settings, n, kAnswerTokens);
  const ReadPrompt read = subject.Read(prompt.tokens);
  std::vector<double> per_viewer = read.importance, uniform(read.importance);
  double later = 0;  // of uniform attention: 1 / (i + 1) from each query i >= s
  for (int s = n - 1; s >= 0; --s) {
    per_viewer[s] /= n - s;
    later += 1.0 / (s + 1);
    uniform[s] = later;
  }
  // The 16 blocks that k = 32 reserves.
  const auto reserved = [&](std::span<const double> importance) {
    const std::vector<double> sums =
        BlockImportance(importance, n, kTileTokens);
    const std::vector<float> no_probes(sums.size());
    return TopKSelector().Select(
        {.k = 32, .probes = no_probes, .importance = sums});
  };
  const Selection by_raw = reserved(read.importance);
  const Selection by_viewer = reserved(per_viewer);
  PitReport report{
      .title = StrCat("Importance by tenths of the prompt (", n, " tokens)"),
      .columns = "lrrrrr",
      .rows = {{"tenth", "uniform attention", "raw", "per viewer",
                "reserved by raw", "by per viewer"}}};
  const auto share = [&](const std::vector<double>& x, int tenth) {
    double part = 0, all = 0;
    for (int s = 0; s < n; ++s) {
      all += x[s];
      if (s * 10LL / n == tenth) part += x[s];
    }
    return part / all;
  };
  const auto places = [&](const Selection& selection, int tenth) {
    return std::ranges::count_if(
        selection.reasons, [&, b = 0](BlockReason reason) mutable {
          const std::int64_t middle = b++ * kTileTokens + kTileTokens / 2;
          return reason == BlockReason::kImportance && middle * 10 / n == tenth;
        });
  };
  for (int tenth = 0; tenth < 10; ++tenth) {
    report.rows.push_back(
        {StrCat(tenth + 1), PercentText(share(uniform, tenth), 1),
         PercentText(share(read.importance, tenth), 1),
         PercentText(share(per_viewer, tenth), 1),
         StrCat(places(by_raw, tenth)), StrCat(places(by_viewer, tenth))});
  }
  const auto late = [&](const Selection& selection) {
    std::ptrdiff_t count = 0;
    for (int tenth = 5; tenth < 10; ++tenth) count += places(selection, tenth);
    return count;
  };
  report.sentence = StrCat(
      "The first tenth of the prompt has ",
      Fixed(share(read.importance, 0) / share(read.importance, 9), 1),
      " times the raw importance of the last (uniform attention: ",
      Fixed(share(uniform, 0) / share(uniform, 9), 1),
      " times), because more queries could see it; per viewer it has ",
      Fixed(share(per_viewer, 0) / share(per_viewer, 9), 2),
      " times. Of the 16 blocks that k = 32 reserves, ", late(by_raw),
      " lie in the last half by raw importance, ", late(by_viewer),
      " per viewer; the article expects the most important blocks at the "
      "tail.");
  return report;
}

PitReport StaleImportance(const PitSettings& settings) {
  constexpr int kForced = 400, kWindow = 100, kBlocks = 8;
  const Prompt prompt = FirstPrompt(settings, kForced);
  const auto n = static_cast<int>(prompt.tokens.size());
  // What is decoded: the facts of another prompt.
  PromptOptions other = settings.prompt;
  other.needle = {.context = 1024, .seed = settings.prompt.needle.seed + 1};
  std::vector<int> text = BuildPrompt(*settings.model, other).tokens;
  text = {text.begin() + 32, text.begin() + 32 + kForced};

  struct Window {
    double decoded = 0, reserved = 0, others = 0, off = 0;
    std::int64_t queries = 0;
  } windows[kForced / kWindow];
  PitSubject subject(settings, n, kForced + kAnswerTokens);
  subject.Read(prompt.tokens);
  for (const ImportanceUse use : {ImportanceUse::kRaw, ImportanceUse::kOff}) {
    settings.progress(use == ImportanceUse::kRaw ? 0.2 : 0.6);
    SparseTopK stage(
        settings.primitives, {.k = kBlocks, .importance = use},
        std::make_unique<ShowChoices>(
            [&](const SelectionInput& input, const Selection& selection) {
              Window& w = windows[(input.id.position - n) / kWindow];
              const double recall = MassOf(input, selection.blocks);
              if (use == ImportanceUse::kOff) {
                w.off += recall;
                return;
              }
              double reserved = 0;
              for (std::size_t b = 0; b < selection.reasons.size(); ++b) {
                if (selection.reasons[b] == BlockReason::kImportance) {
                  reserved += input.masses[b];
                }
                // Blocks in which no prompt token lies.
                if (std::int64_t(b) * kTileTokens >= n) {
                  w.decoded += input.masses[b];
                }
              }
              w.reserved += reserved;
              w.others += recall - reserved;
              ++w.queries;
            }));
    subject.Force(stage, text);
  }
  PitReport report{
      .title = StrCat(kForced,
                      " tokens of other facts decoded after the "
                      "prompt of ",
                      n, " (k = ", kBlocks, ", ", kBlocks / 2, " reserved)"),
      .columns = "lrrrrr",
      .rows = {{"decoded", "attention to new blocks", "4 reserved hold",
                "4 others hold", "together", "--importance off"}}};
  for (int i = 0; i < kForced / kWindow; ++i) {
    const Window& w = windows[i];
    const auto q = static_cast<double>(w.queries);
    report.rows.push_back(
        {StrCat(i * kWindow + 1, " to ", (i + 1) * kWindow),
         PercentText(w.decoded / q), PercentText(w.reserved / q),
         PercentText(w.others / q), PercentText((w.reserved + w.others) / q),
         PercentText(w.off / q)});
  }
  const auto& first = windows[0];
  const auto& last = windows[kForced / kWindow - 1];
  const auto mean = [](double sum, const Window& w) {
    return sum / static_cast<double>(w.queries);
  };
  report.sentence = StrCat(
      "Importance is of the prompt alone: of the last ", kWindow, " queries, ",
      PercentText(mean(last.decoded, last)),
      " of the attention goes to blocks that no reserve knows; the reserved "
      "half holds ",
      PercentText(mean(first.reserved, first)), " at first and ",
      PercentText(mean(last.reserved, last)), " at last, and all 8 places ",
      PercentText(mean(last.reserved + last.others, last)), " against ",
      PercentText(mean(last.off, last)), " if probes had them all.");
  return report;
}

PitReport GroupedHeads(const PitSettings& settings) {
  const Prompt prompt = FirstPrompt(settings);
  const ModelConfig& c = settings.model->config;
  const int group = c.heads / c.kv_heads;
  PitSubject subject(settings, static_cast<int>(prompt.tokens.size()),
                     kAnswerTokens);
  subject.Read(prompt.tokens);
  PitReport report{
      .title = StrCat("Heads that share a KV head: ", group,
                      " choices, or one for all (by the largest probe of any)"),
      .columns = "rlrrrrr",
      .rows = {{"k", "importance", "blocks read", "chosen by all",
                "recall, each its own", "one for all", "most lost"}}};
  double gained = 0, most = 0;
  int most_k = 0;
  const auto measure = [&](int k, ImportanceUse use) {
    // The heads of a group come one after another.
    std::vector<std::vector<float>> probes;
    std::vector<std::vector<double>> masses;
    std::vector<double> recalls;
    std::vector<int> chosen_by;  // [blocks] how many heads
    double own = 0, shared = 0, blocks = 0, agreed = 0, lost = 0;
    std::int64_t heads = 0;
    SparseTopK stage(
        settings.primitives, {.k = k, .importance = use},
        std::make_unique<ShowChoices>(
            [&](const SelectionInput& input, const Selection& selection) {
              recalls.push_back(MassOf(input, selection.blocks));
              own += recalls.back();
              ++heads;
              probes.emplace_back(input.probes.begin(), input.probes.end());
              masses.emplace_back(input.masses.begin(), input.masses.end());
              chosen_by.resize(input.probes.size());
              for (const int b : selection.blocks) ++chosen_by[b];
              if (std::ssize(probes) < group) return;
              std::vector<float> together = probes[0];
              for (const std::vector<float>& one : probes) {
                for (std::size_t b = 0; b < one.size(); ++b) {
                  together[b] = std::max(together[b], one[b]);
                }
              }
              SelectionInput all = input;
              all.probes = together;
              const Selection one_for_all = TopKSelector().Select(all);
              for (std::size_t g = 0; g < masses.size(); ++g) {
                double recall = 0;
                for (const int b : one_for_all.blocks) recall += masses[g][b];
                shared += recall;
                lost = std::max(lost, recalls[g] - recall);
              }
              for (const int by : chosen_by) {
                blocks += by > 0 ? 1 : 0;
                agreed += by == group ? 1 : 0;
              }
              probes.clear();
              masses.clear();
              recalls.clear();
              chosen_by.clear();
            }));
    subject.Answer(stage, true);
    if (heads == 0) {
      Fail(
          "the model's answer ends before the first step of decoding, so "
          "nothing was chosen; ask another --question");
    }
    const auto count = static_cast<double>(heads);
    gained = std::max(gained, (own - shared) / count);
    if (lost > most) most = lost, most_k = k;
    report.rows.push_back(
        {StrCat(k), use == ImportanceUse::kRaw ? "raw" : "off",
         Fixed(blocks * group / count, 1), Fixed(agreed * group / count, 1),
         PercentText(own / count, 1), PercentText(shared / count, 1),
         PercentText(lost, 1)});
  };
  measure(4, ImportanceUse::kRaw);
  measure(8, ImportanceUse::kRaw);
  for (const int k : {2, 3, 4}) measure(k, ImportanceUse::kOff);
  report.sentence =
      group == 1
          ? "This model has a KV head for every query head: there is nothing "
            "to share."
          : StrCat(
                "The heads of a group want different blocks, so it reads more "
                "than k. On the whole its own choice gains a head ",
                gained < 0.0005 ? "nothing" : PercentText(gained, 1),
                " here against one choice for all, but a single query would "
                "lose up to ",
                PercentText(most, 1), " of its attention by it (k = ", most_k,
                "). With importance and k up to 3 all heads choose alike "
                "anyway.");
  return report;
}

const std::vector<Pit>& AllPits() {
  static const std::vector<Pit> pits = {
      {"short-context", "A context shorter than k blocks: nothing to gain",
       false, ShortContext},
      {"hidden-token", "A needle of one token between two probes", false,
       HiddenToken},
      {"straddle", "A needle that lies in two blocks", true, Straddle},
      {"early-bias", "Raw importance favours early tokens", true, EarlyBias},
      {"stale-importance", "Importance after 400 decoded tokens", true,
       StaleImportance},
      {"decoys", "Facts that look like the needle", true, Decoys},
      {"grouped-heads", "Heads of a GQA group that want different blocks", true,
       GroupedHeads},
      {"probe-share", "The cost of probing as the context grows", false,
       ProbeShare},
      {"total-time", "Attention falls, the whole step hardly does", false,
       TotalTime}};
  return pits;
}

}  // namespace kvlab
