/// \file
/// What the experiments on the model share: a model that has read a prompt, and
/// a selector that can be watched.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/generate.h"
#include "day09_kv_q8/q8_single_pass.h"
#include "day10_sparse/pits.h"
#include "day10_sparse/sparse_topk.h"

namespace kvlab {

/// Tokens of an answer at most.
inline constexpr int kAnswerTokens = 40;

/// Reads a prompt once, exactly, on a q8 cache, and answers it as often as
/// asked.
class PitSubject {
 public:
  /// For prompts of `prompt_tokens` tokens and `more` after them. Keeps a
  /// reference to the settings.
  PitSubject(const PitSettings& settings, int prompt_tokens, int more);

  const ReadPrompt& Read(std::span<const int> tokens);

  /// `watched`: by a selector that is not to be called from several threads.
  std::string Answer(AttentionStage& stage, bool watched = false);
  std::string AnswerExactly() { return Answer(exact_); }
  std::string AnswerSparsely(const SparseOptions& options);

  /// The tokens of the exact answer before the one that begins `value`; empty
  /// if it is not there, or begins the answer.
  std::vector<int> TokensBefore(const std::string& value);

  /// Appends tokens one by one, whatever the model would say; watched.
  void Force(AttentionStage& stage, std::span<const int> tokens);

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

/// A prompt for an experiment that decodes `more` tokens after it. Throws a
/// usage Error if the model has no positions for them.
Prompt NeedlePromptOf(const PitSettings& settings, const PromptOptions& o,
                      int more = kAnswerTokens);

/// The prompt of the options. Warns if it is longer than the model knows.
Prompt FirstPrompt(const PitSettings& settings, int more = kAnswerTokens);

/// The blocks of 32 that hold the needle, first and last. Throws Error.
TokenRange NeedleBlocks(const PitSettings& settings, const Prompt& prompt);

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

/// The share of exact attention in some blocks.
double MassOf(const SelectionInput& input, std::span<const int> blocks);

/// 0.5 is "50 %".
std::string PercentText(double share, int digits = 0);

}  // namespace kvlab
