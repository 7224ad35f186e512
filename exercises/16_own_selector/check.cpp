/// \file
/// Holds a selector to its rules, and measures it on queries of the lab model.
///
/// The prompts have 240 tokens, so blocks are smaller than the lesson's: 8
/// tokens, of which 2 are probed. It is one key in four as there, and 8 places
/// among 31 blocks are as tight as 16 among 65.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/engine/generate.h"
#include "common/lab/capture_stage.h"
#include "common/lab/model_prompt.h"
#include "common/loader/model.h"
#include "day09_kv_q8/two_pass.h"
#include "day10_sparse/block_masses.h"
#include "day10_sparse/block_probes.h"
#include "day10_sparse/needle_arms.h"
#include "day10_sparse/sparse_topk.h"
#include "exercises/16_own_selector/own_selector.h"
#include "exercises/checker/code_check.h"

namespace kvlab {
namespace {

constexpr char kSteps[] = "day10_sparse/README.md#four-steps-10-2";
constexpr char kQuality[] = "day10_sparse/README.md#what-choosing-costs";
constexpr char kSignals[] = "day10_sparse/README.md#many-needles";

constexpr int kPrompts = 20;
constexpr int kContext = 240;
constexpr int kAnswerTokens = 16;
constexpr int kBlockTokens = 8;
constexpr int kProbes = 2;
/// Scored, the first of them under its plain name.
constexpr std::array kScored = {8, 4};

/// A generator whose numbers are the same everywhere.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}
  std::uint64_t Number() { return random_(); }
  int Below(std::size_t limit) { return static_cast<int>(random_() % limit); }
  template <typename List>
  const auto& Of(const List& list) {
    return list[random_() % list.size()];
  }

 private:
  std::mt19937_64 random_;
};

std::string Words(const std::vector<int>& blocks) {
  std::string words;
  for (const int b : blocks) words += StrCat(words.empty() ? "" : " ", b);
  return words;
}

/// Throws unless `s` is a choice as BlockSelector promises it.
void ExpectRules(const CodeCheck& check, const SelectionInput& input,
                 const Selection& s) {
  const auto blocks = static_cast<int>(input.probes.size());
  const std::string where =
      StrCat("k = ", input.k, " of ", blocks, " blocks: ");
  check.Expect(!s.blocks.empty(),
               StrCat(where,
                      "expected at least one block, found none: there "
                      "would be nothing to attend over"));
  for (std::size_t i = 0; i < s.blocks.size(); ++i) {
    check.Expect(0 <= s.blocks[i] && s.blocks[i] < blocks,
                 StrCat(where, "blocks[", i, "]: expected 0 to ", blocks - 1,
                        ", found ", s.blocks[i]));
    check.Expect(i == 0 || s.blocks[i - 1] < s.blocks[i],
                 StrCat(where, "blocks[", i, "]: expected a number above ",
                        i == 0 ? 0 : s.blocks[i - 1], ", found ", s.blocks[i],
                        ": blocks are ascending, none twice, so that all of "
                        "them give the bits of exact attention"));
  }
  check.Expect(std::ssize(s.blocks) <= input.k,
               StrCat(where, "expected at most ", input.k, " blocks, found ",
                      s.blocks.size(), ": the budget is what makes it sparse"));
  check.ExpectEqual(where + "number of reasons", input.probes.size(),
                    s.reasons.size());
  for (int b = 0; b < blocks; ++b) {
    const bool taken = std::ranges::count(s.blocks, b) == 1;
    check.Expect(IsTaken(s.reasons[b]) == taken,
                 StrCat(where, "reasons[", b, "] says \"",
                        ReasonName(s.reasons[b]), "\", which is ",
                        taken ? "a reason to drop it, but blocks has it"
                              : "a reason to take it, but blocks has it not"));
  }
}

/// The student's selector: every choice is held to the rules.
class Checked final : public BlockSelector {
 public:
  explicit Checked(const CodeCheck& check)
      : check_(check), own_(MakeOwnSelector()) {
    check.Expect(own_ != nullptr, "MakeOwnSelector returned no selector");
  }
  Selection Select(const SelectionInput& input) const override {
    Selection selection = own_->Select(input);
    ExpectRules(check_, input, selection);
    return selection;
  }

 private:
  const CodeCheck& check_;
  std::unique_ptr<BlockSelector> own_;
};

/// Numbers as no model has them: few values, so that many are equal.
struct Invented {
  std::vector<float> probes;
  std::vector<double> importance;
};

Invented Invent(Draw& draw, int blocks, bool with_importance) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {-3.0f,     -0.0f,      0.0f,
                                     1.5f,      1.5f,       20.0f,
                                     kInfinity, -kInfinity, std::nanf("")};
  Invented made;
  for (int b = 0; b < blocks; ++b) {
    // Half of the lists are of ordinary numbers.
    made.probes.push_back(values[draw.Below(blocks % 2 == 0 ? 6 : 9)]);
    if (with_importance) made.importance.push_back(draw.Below(4));
  }
  return made;
}

/// A query of the model, and what exact attention gives each block.
struct RealQuery {
  HeadId id;
  std::vector<float> probes;
  std::vector<double> importance;
  std::vector<double> masses;

  SelectionInput Input(int k, bool with_masses) const {
    return {.k = k,
            .probes = probes,
            .importance = importance,
            .masses = with_masses ? std::span<const double>(masses)
                                  : std::span<const double>(),
            .id = id};
  }
};

/// The model after it read the prompts of one seed and answered them exactly.
class Lab {
 public:
  explicit Lab(std::uint32_t seed);

  const std::vector<RealQuery>& queries() const { return queries_; }

  /// The share of exact attention in blocks chosen by `selector`, the mean
  /// over all queries.
  double MassRecall(const BlockSelector& selector, int k) const {
    double sum = 0;
    for (const RealQuery& q : queries_) sum += Mass(q, selector, k);
    return sum / static_cast<double>(queries_.size());
  }
  static double Mass(const RealQuery& q, const BlockSelector& selector, int k) {
    const Selection chosen =
        selector.Select(q.Input(k, selector.needs_masses()));
    double mass = 0;
    for (const int b : chosen.blocks) mass += q.masses[b];
    return mass;
  }

  /// Of the prompts that exact attention answers rightly, the share that the
  /// selector does.
  double NeedleRecall(
      const std::function<std::unique_ptr<BlockSelector>()>& make_selector,
      int k) {
    int asked = 0, found = 0;
    for (Reading& reading : readings_) {
      if (!reading.answered) continue;
      SparseTopK stage(
          primitives_,
          {.k = k, .block_tokens = kBlockTokens, .n_probe = kProbes},
          make_selector());
      ++asked;
      found += Answers(reading, stage) ? 1 : 0;
    }
    return asked == 0 ? 1 : static_cast<double>(found) / asked;
  }

 private:
  struct Reading {
    std::unique_ptr<KvCache> cache;
    ReadPrompt read;
    std::string expected;
    bool answered = false;  // by exact attention
  };

  bool Answers(Reading& reading, AttentionStage& stage) {
    stage.BeginPrompt();
    const Generation answer =
        Continue(transformer_, *reading.cache, stage, reading.read,
                 {.max_tokens = kAnswerTokens, .stop_ids = model_.eos_ids});
    return ContainsWord(model_.tokenizer.Decode(answer.tokens, true),
                        reading.expected);
  }
  Prompt DrawPrompt(const FactBook& book, Draw& draw) const;
  void Keep(const AttendInput& input);

  const Primitives& primitives_ = PrimitivesFor(BestIsa());
  ThreadPool pool_{1};
  Model model_ = LoadModel(LabModelDirectory());
  Transformer transformer_{model_.config, model_.weights, primitives_, pool_};
  std::vector<Reading> readings_;
  std::vector<RealQuery> queries_;
};

Lab::Lab(std::uint32_t seed) {
  const FactBook book = FactBook::LoadShipped();
  Draw draw(seed);
  for (int i = 0; i < kPrompts; ++i) {
    const Prompt prompt = DrawPrompt(book, draw);
    Reading reading{
        .cache = std::make_unique<KvCache>(
            transformer_.CacheShape(KvFormat::kQ8, kContext + kAnswerTokens),
            primitives_),
        .read = {},
        .expected = prompt.needle->expected};
    TwoPass exact(primitives_, false);
    reading.read = Prefill(transformer_, *reading.cache, exact, prompt.tokens,
                           {.record_importance = true});
    CaptureStage capture(
        primitives_, exact,
        [&](const AttendInput& input, std::span<const float> /*out*/) {
          AttendInput with_importance = input;
          with_importance.importance = reading.read.importance;
          Keep(with_importance);
        });
    reading.answered = Answers(reading, capture);
    readings_.push_back(std::move(reading));
  }
}

Prompt Lab::DrawPrompt(const FactBook& book, Draw& draw) const {
  PromptOptions options;
  options.needle.context = kContext;
  options.needle.depth = draw.Below(101) / 100.0;
  options.needle.seed = draw.Number();
  Fact fact;
  fact.attribute = &draw.Of(book.attributes());
  fact.name = draw.Of(book.names());
  fact.value = draw.Of(fact.attribute->values);
  options.needle.needle = fact.Text();
  return BuildPrompt(model_, options);
}

void Lab::Keep(const AttendInput& input) {
  const int tokens = input.kv.tokens;
  TileReader reader(primitives_, input.kv);
  for (int g = 0; g < input.group; ++g) reader.Add(input.Query(g));
  const auto probes = ProbeBlocks(primitives_, reader, input.group, tokens,
                                  kBlockTokens, kProbes);
  for (int g = 0; g < input.group; ++g) {
    queries_.push_back(
        {.id = {input.layer, input.first_head + g, input.position},
         .probes = probes[g],
         .importance = BlockImportance(input.importance, tokens, kBlockTokens),
         .masses = BlockMasses(reader, primitives_, g, tokens, kBlockTokens)});
  }
}

/// What the student is measured against.
struct Reference {
  BlockArm arm;
  std::string name;
};
const Reference kReferences[] = {{BlockArm::kArticle, "article"},
                                 {BlockArm::kOracle, "oracle"},
                                 {BlockArm::kRecency, "recency"},
                                 {BlockArm::kRandom, "chance"}};

/// "mass recall", and where it is not the first k " at k = 4".
std::string ScoreName(const std::string& what, int k) {
  return k == kScored.front() ? what : StrCat(what, " at k = ", k);
}

/// Where the article's choice holds most more than the student's.
std::string WorstQuery(const Lab& lab, const BlockSelector& own, int k) {
  const TopKSelector article;
  const RealQuery* worst = nullptr;
  double most = 0;
  for (const RealQuery& q : lab.queries()) {
    const double more = Lab::Mass(q, article, k) - Lab::Mass(q, own, k);
    if (more > most) most = more, worst = &q;
  }
  if (worst == nullptr) return "";
  const auto heaviest =
      std::ranges::max_element(worst->masses) - worst->masses.begin();
  return StrCat(
      ". The largest loss is in ", worst->id, ": block ", heaviest, " of ",
      worst->masses.size(), " has ", Fixed(100 * worst->masses[heaviest], 1),
      " % of the attention; the article takes blocks ",
      Words(article.Select(worst->Input(k, false)).blocks), ", yours are ",
      Words(own.Select(worst->Input(k, false)).blocks));
}

void Tests(CodeCheck& check) {
  check.Test("rules", kSteps, [&] {
    const Checked own(check);
    check.Expect(!MakeOwnSelector()->needs_masses(),
                 "needs_masses is true: the masses are exact attention, and "
                 "to know them is to have read every key");
    Draw draw(check.Seed());
    for (int blocks = 1; blocks <= 33; ++blocks) {
      for (const bool importance : {false, true}) {
        const Invented made = Invent(draw, blocks, importance);
        for (const int k : {1, 2, 3, 4, 8, blocks, blocks + 3}) {
          own.Select({.k = k,
                      .probes = made.probes,
                      .importance = made.importance,
                      .id = {0, 1, 8 * blocks - 1}});
        }
      }
    }
  });

  check.Test("the same choice every time", kSteps, [&] {
    const Checked own(check);
    Draw draw(check.Seed() + std::uint64_t{1});
    for (int i = 0; i < 50; ++i) {
      const Invented made = Invent(draw, 2 + draw.Below(40), i % 2 == 0);
      const SelectionInput input{.k = 1 + draw.Below(8),
                                 .probes = made.probes,
                                 .importance = made.importance,
                                 .id = {i % 3, i % 4, 240 + i}};
      const Selection first = own.Select(input);
      // Other memory, another selector, and other calls in between.
      const Invented copy = made;
      SelectionInput same = input;
      same.probes = copy.probes;
      same.importance = copy.importance;
      for (int turn = 0; turn < 3; ++turn) {
        const Selection again =
            turn == 1 ? Checked(check).Select(same) : own.Select(same);
        check.Expect(
            again.blocks == first.blocks && again.reasons == first.reasons,
            StrCat("input[", i, "], k = ", input.k, " of ", made.probes.size(),
                   " blocks: expected blocks ", Words(first.blocks),
                   " as when first asked, found ", Words(again.blocks),
                   again.blocks == first.blocks ? " for other reasons" : "",
                   ": the same query over the same cache must choose the same "
                   "blocks; a selector remembers nothing and draws nothing"));
      }
    }
  });

  // A model that cannot be read is no fault of the student's.
  Lab lab(check.Seed());
  double article[std::size(kScored)] = {};
  double chance[std::size(kScored)] = {};
  for (std::size_t i = 0; i < std::size(kScored); ++i) {
    for (const Reference& reference : kReferences) {
      const auto make = [&] { return MakeArm(reference.arm, check.Seed()); };
      const double mass = lab.MassRecall(*make(), kScored[i]);
      const double needle = lab.NeedleRecall(make, kScored[i]);
      if (reference.arm == BlockArm::kArticle) article[i] = mass;
      if (reference.arm == BlockArm::kRandom) chance[i] = needle;
      check.Score(reference.name + ": " + ScoreName("mass recall", kScored[i]),
                  mass);
      check.Score(
          reference.name + ": " + ScoreName("needle recall", kScored[i]),
          needle);
    }
  }

  for (std::size_t i = 0; i < std::size(kScored); ++i) {
    const int k = kScored[i];
    check.Test(StrCat("mass recall at k = ", k), kQuality, [&] {
      const Checked own(check);
      const double mass = lab.MassRecall(own, k);
      check.Score(ScoreName("mass recall", k), mass);
      check.Expect(
          mass > article[i],
          StrCat("mean share of exact attention over ", lab.queries().size(),
                 " queries: expected more than the article's ",
                 Fixed(article[i], 4), ", found ", Fixed(mass, 4),
                 WorstQuery(lab, own, k)));
    });
  }

  check.Test("needle recall", kSignals, [&] {
    const auto make = [&] { return std::make_unique<Checked>(check); };
    for (std::size_t i = 0; i < std::size(kScored); ++i) {
      const double needle = lab.NeedleRecall(make, kScored[i]);
      check.Score(ScoreName("needle recall", kScored[i]), needle);
      check.Expect(
          needle >= chance[i],
          StrCat("share of answers that hold the needle's value, k = ",
                 kScored[i], ": expected at least ", Fixed(chance[i], 2),
                 " as with blocks drawn at random, found ", Fixed(needle, 2),
                 ": the needle's block is not among the chosen"));
    }
  });

  check.Test("never below chance", kSignals, [&] {
    const Checked own(check);
    for (const int k : {1, 2, 4, 8, 16}) {
      double expected = 0;
      for (const RealQuery& q : lab.queries()) {
        const auto blocks = static_cast<double>(q.masses.size());
        expected += std::min(1.0, k / blocks);
      }
      expected /= static_cast<double>(lab.queries().size());
      const double mass = lab.MassRecall(own, k);
      check.Expect(
          mass >= expected,
          StrCat("mean share of exact attention, k = ", k,
                 ": expected at least ", Fixed(expected, 4),
                 " as k of the blocks at random hold on average, found ",
                 Fixed(mass, 4),
                 ": what fills the places looks for what this query does not "
                 "want"));
    }
  });
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  return kvlab::CodeCheckMain(argc, argv, kvlab::Tests);
}
