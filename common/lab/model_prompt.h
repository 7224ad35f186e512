/// \file
/// What a program asks a model: the options that say so, and the prompt that
/// comes of them.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/lab/cli.h"
#include "common/lab/needle_prompt.h"
#include "common/loader/model.h"

namespace kvlab {

/// --model, --prompt, --prompt-file, the needle scenario, --raw, --thinking.
struct PromptOptions {
  std::string model = LabModelDirectory().string();
  std::optional<std::string> text = {};  ///< --prompt
  std::string file = {};                 ///< --prompt-file
  NeedleOptions needle = {};
  bool raw = false;
  bool thinking = false;
};

/// Declares these options.
void DeclarePromptOptions(CLI::App& app, PromptOptions& o);

/// Text and tokens of what the model is given.
struct Prompt {
  std::string text;
  std::vector<int> tokens;
  std::optional<NeedlePrompt>
      needle;  ///< absent for a prompt of the user's own
};

/// The prompt that the options ask for. Throws Error.
Prompt BuildPrompt(const Model& model, const PromptOptions& o);

/// Throws a usage Error if the model has no positions for the prompt and
/// `max_tokens` more; warns on stderr beyond what it was trained on.
void CheckLength(const Model& model, const Prompt& prompt, int max_tokens);

/// The last part of the model's directory.
std::string ModelName(const Model& model);

/// "lab_model (qwen3, 3 layers, ...)", fit for a terminal.
std::string ModelSummary(const Model& model);

}  // namespace kvlab
