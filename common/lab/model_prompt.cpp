#include "common/lab/model_prompt.h"

#include <cstdint>
#include <filesystem>
#include <iostream>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/loader/json.h"
#include "common/loader/unicode.h"

namespace kvlab {
namespace {

/// Refuses text that is no UTF-8, by the name that the user knows it by.
void RequireUtf8(const std::string& text, const std::string& name,
                 ExitCode code = kExitUsage) {
  if (const auto broken = FindInvalidUtf8(text)) {
    throw Error(
        StrCat(name, ": expected UTF-8, found a broken character at byte ",
               *broken, " (", Printable(text.substr(*broken, 1)), ")"),
        code);
  }
}

/// The user's message in the model's chat form.
std::string RenderChat(const Model& model, const PromptOptions& o,
                       const std::string& message) {
  if (!model.chat) Fail(model.chat_problem);
  if (o.thinking && !model.chat->has_thinking()) {
    FailUsage("--thinking: the chat template of ", PathText(model.directory),
              " has no switch for thinking");
  }
  const ChatMessage user{.role = "user", .content = message};
  return model.chat->Render({&user, 1}, o.thinking);
}

}  // namespace

void DeclarePromptOptions(CLI::App& app, PromptOptions& o) {
  app.add_option("--model", o.model,
                 "Hugging Face model directory (default: the lab model)")
      ->transform(NotEmpty())
      ->type_name("DIR");
  CLI::Option* prompt = app.add_option("--prompt", o.text,
                                       "Your own prompt instead of the "
                                       "needle scenario")
                            ->transform(NotEmpty())
                            ->type_name("TEXT");
  CLI::Option* prompt_file =
      app.add_option("--prompt-file", o.file,
                     "The same from a file, - for standard input")
          ->transform(NotEmpty())
          ->type_name("FILE")
          ->excludes(prompt);
  const auto needle_option = [&](CLI::Option* option) {
    option->group("Needle scenario")->excludes(prompt)->excludes(prompt_file);
  };
  needle_option(app.add_option("--context", o.needle.context,
                               "Tokens of the whole prompt")
                    ->transform(WholeNumber(1, 100'000'000))
                    ->capture_default_str()
                    ->type_name("N"));
  needle_option(app.add_option("--depth", o.needle.depth,
                               "Where the needle stands, 0 first ... 1 last")
                    ->transform(Share())
                    ->capture_default_str()
                    ->type_name("X"));
  needle_option(
      app.add_option("--seed", o.needle.seed, "Which filler facts are drawn")
          ->transform(WholeNumber(0, UINT64_MAX))
          ->capture_default_str()
          ->type_name("N"));
  needle_option(
      app.add_option("--needle", o.needle.needle,
                     "The fact to be found, worded like \"Zara lives in "
                     "Paris.\", \"Zara works as a baker.\", \"Zara's "
                     "favorite city is Paris.\", \"Zara's dog is called "
                     "Rex.\"; else add --question")
          ->transform(NotEmpty())
          ->capture_default_str()
          ->type_name("TEXT"));
  needle_option(app.add_option("--question", o.needle.question,
                               "The question (default: the needle's own)")
                    ->transform(NotEmpty())
                    ->type_name("TEXT"));
  needle_option(app.add_option("--fact", o.needle.facts,
                               "A fact of yours among the filler; may be given "
                               "several times")
                    ->transform(NotEmpty())
                    ->type_size(1)
                    ->expected(1)
                    ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                    ->allow_extra_args(false)
                    ->type_name("TEXT"));
  CLI::Option* raw =
      app.add_flag("--raw", o.raw, "No chat template: a bare completion");
  app.add_flag("--thinking", o.thinking,
               "Let a model that can think do so before it answers")
      ->excludes(raw);
}

Prompt BuildPrompt(const Model& model, const PromptOptions& o) {
  Prompt prompt;
  if (o.text || !o.file.empty()) {
    const std::string text = o.text ? *o.text : ReadInput(o.file);
    if (o.text) {
      RequireUtf8(text, "--prompt");
    } else {
      RequireUtf8(text, o.file == "-" ? "standard input" : PathText(o.file),
                  kExitFailed);
    }

    prompt.text = o.raw ? text : RenderChat(model, o, text);
    prompt.tokens = model.tokenizer.Encode(prompt.text);
    if (prompt.tokens.empty()) {
      FailUsage(o.text ? "--prompt" : "--prompt-file",
                ": the prompt is empty; give at least one character");
    }
    return prompt;
  }
  if (o.needle.context > model.config.max_position_embeddings) {
    FailUsage("--context ", o.needle.context, ": ", PathText(model.directory),
              " has positions for ",
              Count(model.config.max_position_embeddings, "token"),
              "; ask for fewer");
  }
  RequireUtf8(o.needle.needle, "--needle");
  RequireUtf8(o.needle.question, "--question");
  for (const std::string& fact : o.needle.facts) RequireUtf8(fact, "--fact");
  const RenderPrompt render = [&](const std::string& facts,
                                  const std::string& question) {
    if (o.raw) return facts + "\nQuestion: " + question + "\nAnswer:";
    return RenderChat(model, o, facts + "\n" + question);
  };
  prompt.needle = BuildNeedlePrompt(o.needle, FactBook::LoadShipped(),
                                    model.tokenizer, render);
  prompt.text = prompt.needle->text;
  prompt.tokens = prompt.needle->tokens;
  return prompt;
}

void CheckLength(const Model& model, const Prompt& prompt, int max_tokens) {
  const auto tokens = std::ssize(prompt.tokens);
  const ModelConfig& c = model.config;
  if (tokens + max_tokens > c.max_position_embeddings) {
    FailUsage("the prompt has ", Count(tokens, "token"),
              " and --max-tokens is ", max_tokens, ", but ",
              PathText(model.directory), " has positions for ",
              c.max_position_embeddings, ": together at most that many");
  }
  if (tokens > c.trained_context) {
    Warn(StrCat("the prompt has ", Count(tokens, "token"),
                ", but the model was trained on at most ", c.trained_context,
                ": expect wrong answers"));
  }
}

std::string ModelName(const Model& model) {
  const std::filesystem::path path =
      std::filesystem::absolute(model.directory).lexically_normal();
  return path.has_filename() ? path.filename().string()
                             : path.parent_path().filename().string();
}

std::string ModelSummary(const Model& model) {
  const ModelConfig& c = model.config;
  return StrCat(Printable(ModelName(model)), " (", c.family->model_type, ", ",
                Count(c.layers, "layer"), ", ", Count(c.heads, "query head"),
                ", ", Count(c.kv_heads, "KV head"), ", head_dim ", c.head_dim,
                ")");
}

}  // namespace kvlab
