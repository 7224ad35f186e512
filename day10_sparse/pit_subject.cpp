#include "day10_sparse/pit_subject.h"

#include "common/base/error.h"
#include "common/base/text.h"

namespace kvlab {

PitSubject::PitSubject(const PitSettings& settings, int prompt_tokens, int more)
    : settings_(settings),
      model_(*settings.model),
      pool_(settings.threads),
      transformer_(model_.config, model_.weights, settings.primitives, pool_),
      cache_(Shape(prompt_tokens + more), settings.primitives),
      exact_(settings.primitives, kTileTokens),
      more_(more) {}

const ReadPrompt& PitSubject::Read(std::span<const int> tokens) {
  prompt_ = Prefill(transformer_, cache_, exact_, tokens,
                    {.record_importance = true,
                     .progress = [&](double) { settings_.check(); }});
  return prompt_;
}

std::string PitSubject::Answer(AttentionStage& stage, bool watched) {
  stage.BeginPrompt();
  const Generation g = Continue(transformer_, cache_, stage, prompt_,
                                {.max_tokens = more_,
                                 .stop_ids = model_.eos_ids,
                                 .observer = watched ? &nobody_ : nullptr,
                                 .on_token = [&](int) { settings_.check(); }});
  return model_.tokenizer.Decode(g.tokens, true);
}

std::string PitSubject::AnswerSparsely(const SparseOptions& options) {
  SparseTopK stage(settings_.primitives, options);
  return Answer(stage);
}

std::vector<int> PitSubject::TokensBefore(const std::string& value) {
  exact_.BeginPrompt();
  std::vector<int> tokens =
      Continue(transformer_, cache_, exact_, prompt_,
               {.max_tokens = more_, .stop_ids = model_.eos_ids})
          .tokens;
  const std::size_t at = model_.tokenizer.Decode(tokens, true).find(value);
  if (at == std::string::npos) return {};
  while (!tokens.empty() && model_.tokenizer.Decode(tokens, true).size() > at) {
    tokens.pop_back();
  }
  return tokens;
}

void PitSubject::Force(AttentionStage& stage, std::span<const int> tokens) {
  stage.BeginPrompt();
  cache_.Truncate(prompt_.tokens);
  for (const int token : tokens) {
    settings_.check();
    transformer_.Decode(
        token, cache_, stage,
        {.importance = prompt_.importance, .observer = &nobody_});
  }
}

Prompt NeedlePromptOf(const PitSettings& settings, const PromptOptions& o,
                      int more) {
  Prompt prompt = BuildPrompt(*settings.model, o);
  const int positions = settings.model->config.max_position_embeddings;
  if (std::ssize(prompt.tokens) + more > positions) {
    FailUsage("--context ", o.needle.context, ": ", more,
              " tokens are decoded after it, and the model has positions for ",
              positions, "; ask for at most ", positions - more);
  }
  return prompt;
}

Prompt FirstPrompt(const PitSettings& settings, int more) {
  Prompt prompt = NeedlePromptOf(settings, settings.prompt, more);
  CheckLength(*settings.model, prompt, 0);
  return prompt;
}

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

double MassOf(const SelectionInput& input, std::span<const int> blocks) {
  double mass = 0;
  for (const int block : blocks) mass += input.masses[block];
  return mass;
}

std::string PercentText(double share, int digits) {
  return Fixed(100 * share, digits) + " %";
}

}  // namespace kvlab
