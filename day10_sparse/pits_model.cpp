/// \file
/// The experiments on the model: the needle question, asked under conditions
/// that are hard for the choice of blocks.
#include <algorithm>
#include <climits>
#include <optional>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/engine/generate.h"
#include "day09_kv_q8/q8_single_pass.h"
#include "day10_sparse/choice_quality.h"
#include "day10_sparse/pits.h"
#include "day10_sparse/sparse_topk.h"

namespace kvlab {
namespace {

std::string Percent(double share, int digits = 0) {
  return Fixed(100 * share, digits) + " %";
}

/// Reads a prompt once, exactly, and answers it as often as asked.
class Subject {
 public:
  Subject(const PitSettings& settings, int prompt_tokens, int more)
      : settings_(settings),
        model_(*settings.model),
        pool_(settings.threads),
        transformer_(model_.config, model_.weights, settings.primitives, pool_),
        cache_(Shape(prompt_tokens + more), settings.primitives),
        exact_(settings.primitives, kTileTokens),
        more_(more) {}

  const ReadPrompt& Read(std::span<const int> tokens) {
    prompt_ = Prefill(transformer_, cache_, exact_, tokens,
                      {.record_importance = true,
                       .progress = [&](double) { settings_.check(); }});
    return prompt_;
  }

  /// `watched`: by a selector that is not to be called from several threads.
  std::string Answer(AttentionStage& stage, bool watched = false) {
    stage.BeginPrompt();
    const Generation g =
        Continue(transformer_, cache_, stage, prompt_,
                 {.max_tokens = more_,
                  .stop_ids = model_.eos_ids,
                  .observer = watched ? &nobody_ : nullptr,
                  .on_token = [&](int) { settings_.check(); }});
    return model_.tokenizer.Decode(g.tokens, true);
  }
  std::string AnswerExactly() { return Answer(exact_); }
  /// The tokens of the exact answer before the one that begins `value`; empty
  /// if it is not there, or begins the answer.
  std::vector<int> TokensBefore(const std::string& value) {
    exact_.BeginPrompt();
    std::vector<int> tokens =
        Continue(transformer_, cache_, exact_, prompt_,
                 {.max_tokens = more_, .stop_ids = model_.eos_ids})
            .tokens;
    const std::size_t at = model_.tokenizer.Decode(tokens, true).find(value);
    if (at == std::string::npos) return {};
    while (!tokens.empty() &&
           model_.tokenizer.Decode(tokens, true).size() > at) {
      tokens.pop_back();
    }
    return tokens;
  }
  std::string AnswerSparsely(const SparseOptions& options) {
    SparseTopK stage(settings_.primitives, options);
    return Answer(stage);
  }

  /// Appends tokens one by one, whatever the model would say; watched.
  void Force(AttentionStage& stage, std::span<const int> tokens) {
    stage.BeginPrompt();
    cache_.Truncate(prompt_.tokens);
    for (const int token : tokens) {
      settings_.check();
      transformer_.Decode(
          token, cache_, stage,
          {.importance = prompt_.importance, .observer = &nobody_});
    }
  }

 private:
  KvCacheShape Shape(int capacity) const {
    KvCacheShape shape = transformer_.CacheShape(KvFormat::kQ8, capacity);
    shape.packed_step = SparseTopK(settings_.primitives, {}).packed_step();
    return shape;
  }

  const PitSettings& settings_;
  const Model& model_;
  ThreadPool pool_;
  Transformer transformer_;
  KvCache cache_;
  Q8SinglePass exact_;
  int more_;
  ReadPrompt prompt_;
  Observer nobody_;  // with an observer the engine calls the stage from one
                     // thread
};

constexpr int kAnswerTokens = 40;

/// A prompt for an experiment that decodes `more` tokens after it.
Prompt NeedlePromptOf(const PitSettings& settings, const PromptOptions& o,
                      int more = kAnswerTokens) {
  Prompt prompt = BuildPrompt(*settings.model, o);
  const int positions = settings.model->config.max_position_embeddings;
  if (std::ssize(prompt.tokens) + more > positions) {
    FailUsage("--context ", o.needle.context, ": ", more,
              " tokens are decoded after it, and the model has positions for ",
              positions, "; ask for at most ", positions - more);
  }
  return prompt;
}

/// The prompt of the options. Warns if it is longer than the model knows.
Prompt FirstPrompt(const PitSettings& settings, int more = kAnswerTokens) {
  Prompt prompt = NeedlePromptOf(settings, settings.prompt, more);
  CheckLength(*settings.model, prompt, 0);
  return prompt;
}

const char* YesNo(bool yes) { return yes ? "YES" : "NO"; }

/// The blocks of 32 that hold the needle, first and last.
TokenRange NeedleBlocks(const PitSettings& settings, const Prompt& prompt) {
  const auto tokens = FindTokens(settings.model->tokenizer, prompt.tokens,
                                 prompt.needle->needle);
  if (!tokens) {
    Fail(
        "the needle's sentence is not found among the prompt's tokens; this "
        "model's tokenizer rewrites text");
  }
  return {tokens->first / kTileTokens, tokens->last / kTileTokens};
}

/// A selector that shows every choice to a function.
class ShowChoices final : public BlockSelector {
 public:
  using See = std::function<void(const SelectionInput&, const Selection&)>;
  explicit ShowChoices(See see) : see_(std::move(see)) {}
  bool needs_masses() const override { return true; }
  Selection Select(const SelectionInput& input) const override {
    Selection selection = TopKSelector().Select(input);
    see_(input, selection);
    return selection;
  }

 private:
  See see_;
};

double MassOf(const SelectionInput& input, std::span<const int> blocks) {
  double mass = 0;
  for (const int block : blocks) mass += input.masses[block];
  return mass;
}

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
  Subject subject(settings, settings.prompt.needle.context, kAnswerTokens);
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

PitReport EarlyBias(const PitSettings& settings) {
  const Prompt prompt = FirstPrompt(settings);
  const auto n = static_cast<int>(prompt.tokens.size());
  Subject subject(settings, n, kAnswerTokens);
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
    report.rows.push_back({StrCat(tenth + 1), Percent(share(uniform, tenth), 1),
                           Percent(share(read.importance, tenth), 1),
                           Percent(share(per_viewer, tenth), 1),
                           StrCat(places(by_raw, tenth)),
                           StrCat(places(by_viewer, tenth))});
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
  Subject subject(settings, n, kForced + kAnswerTokens);
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
         Percent(w.decoded / q), Percent(w.reserved / q), Percent(w.others / q),
         Percent((w.reserved + w.others) / q), Percent(w.off / q)});
  }
  const auto& first = windows[0];
  const auto& last = windows[kForced / kWindow - 1];
  const auto mean = [](double sum, const Window& w) {
    return sum / static_cast<double>(w.queries);
  };
  report.sentence = StrCat(
      "Importance is of the prompt alone: of the last ", kWindow, " queries, ",
      Percent(mean(last.decoded, last)),
      " of the attention goes to blocks that no reserve knows; the reserved "
      "half holds ",
      Percent(mean(first.reserved, first)), " at first and ",
      Percent(mean(last.reserved, last)), " at last, and all 8 places ",
      Percent(mean(last.reserved + last.others, last)), " against ",
      Percent(mean(last.off, last)), " if probes had them all.");
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
  Subject subject(settings, settings.prompt.needle.context, kAnswerTokens);
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

PitReport GroupedHeads(const PitSettings& settings) {
  const Prompt prompt = FirstPrompt(settings);
  const ModelConfig& c = settings.model->config;
  const int group = c.heads / c.kv_heads;
  Subject subject(settings, static_cast<int>(prompt.tokens.size()),
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
         Percent(own / count, 1), Percent(shared / count, 1),
         Percent(lost, 1)});
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
                gained < 0.0005 ? "nothing" : Percent(gained, 1),
                " here against one choice for all, but a single query would "
                "lose up to ",
                Percent(most, 1), " of its attention by it (k = ", most_k,
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
