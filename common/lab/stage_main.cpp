#include "common/lab/stage_main.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "common/base/error.h"
#include "common/base/parallel.h"
#include "common/base/quantile.h"
#include "common/base/text.h"
#include "common/engine/generate.h"
#include "common/lab/cli.h"
#include "common/lab/dump.h"
#include "common/lab/interrupt.h"
#include "common/lab/model_prompt.h"
#include "common/lab/progress_line.h"
#include "common/lab/trace.h"
#include "common/loader/json.h"
#include "common/loader/model.h"
#include "common/loader/output_file.h"

namespace kvlab {
namespace {

struct Options {
  PromptOptions prompt;
  int max_tokens = 40;
  bool ignore_eos = false;
  int threads = PhysicalCores();
  std::string isa;
  int prefill_chunk = 512;
  int tile = kTileTokens;
  std::string kv;
  bool show_prompt = false;
  bool json = false;
  std::string dump;
  std::string trace;
  std::string trace_layer;  ///< "": not given
  std::string trace_head;
  std::string trace_step;
};

void DeclareOptions(CLI::App& app, const StageProgram& program, Options& o) {
  DeclarePromptOptions(app, o.prompt);
  app.add_option("--max-tokens", o.max_tokens, "Most tokens to generate")
      ->transform(WholeNumber(1, 10'000'000))
      ->capture_default_str()
      ->type_name("N");
  app.add_flag("--ignore-eos", o.ignore_eos,
               "Go on after the end-of-text token");
  DeclareMachineOptions(app, o.threads, o.isa);
  app.add_option("--prefill-chunk", o.prefill_chunk,
                 "Prompt tokens at a time; changes no result")
      ->transform(WholeNumber(1, 1'000'000))
      ->capture_default_str()
      ->type_name("N");
  if (program.has_tile) {
    app.add_option("--tile", o.tile,
                   "Cached tokens at a time: 32, or 1 for the article's loop")
        ->check(CLI::IsMember({1, kTileTokens}))
        ->transform(WholeNumber(1, kTileTokens))
        ->capture_default_str()
        ->type_name("N");
  }
  o.kv = program.kv == KvFormat::kF32 ? "f32" : "q8";
  if (program.has_kv) {
    app.add_option("--kv", o.kv, "How keys and values are stored: f32 or q8")
        ->check(CLI::IsMember({"f32", "q8"}))
        ->capture_default_str()
        ->type_name("FORMAT");
  }
  if (program.declare_options) program.declare_options(app);
  CLI::Option* show =
      app.add_flag("--show-prompt", o.show_prompt,
                   "Print the whole prompt as the model gets it, and stop");
  app.add_flag("--json", o.json, "Report as one JSON object")->excludes(show);
  app.add_option("--dump", o.dump,
                 "Write attention outputs, scores, logits and tokens "
                 "(safetensors)")
      ->transform(OutputName())
      ->excludes(show)
      ->type_name("FILE");
  if (!program.has_tile && !program.sparse) return;
  CLI::Option* trace =
      app.add_option(
             "--trace", o.trace,
             StrCat("Write what ",
                    program.sparse ? "became of each block"
                                   : "the running softmax did with each tile",
                    " (JSON; FILE.js: a script for a page)"))
          ->transform(OutputName())
          ->excludes(show)
          ->type_name("FILE");
  const auto trace_option = [&](const char* name, std::string& value,
                                const char* what, const char* viewed) {
    CLI::Option* option =
        app.add_option(
               name, value,
               program.view == nullptr
                   ? StrCat("Which ", what, " to trace")
                   : StrCat("Which ", what, " to trace, or to show by ",
                            program.view->option(), " (there: ", viewed, ")"))
            ->transform(WholeNumber(0, 1'000'000) | CLI::IsMember({"all"}))
            ->default_str("0")
            ->type_name("N|all");
    if (program.view == nullptr) option->needs(trace);
  };
  trace_option("--trace-layer", o.trace_layer, "layer", "all");
  trace_option("--trace-head", o.trace_head, "query head", "all");
  trace_option("--trace-step", o.trace_step, "decode step", "0");
  if (program.view != nullptr) program.view->Declare(app);
}

/// "7" to 7, "all" to nothing. Refuses a number that is not below `count`.
std::optional<int> TraceNumber(const char* option, const std::string& text,
                               int count, const char* what) {
  if (text == "all") return std::nullopt;
  const int number = std::stoi(text);
  if (number >= count) {
    FailUsage(option, ' ', number, ": the model has ", Count(count, what),
              ", numbered from 0");
  }
  return number;
}

/// Which calls to trace, or with `view` to show by the program's view: a layer
/// or head that was not chosen is the first in a trace, and any in a view.
TraceFilter ChosenCalls(const Options& o, const ModelConfig& config,
                        bool view) {
  const auto chosen = [](const std::string& text, const char* otherwise) {
    return text.empty() ? otherwise : text;
  };
  const char* any = view ? "all" : "0";
  return {.layer = TraceNumber("--trace-layer", chosen(o.trace_layer, any),
                               config.layers, "layer"),
          .head = TraceNumber("--trace-head", chosen(o.trace_head, any),
                              config.heads, "query head"),
          .step = TraceNumber("--trace-step", chosen(o.trace_step, "0"),
                              INT_MAX, "step")};
}

/// Refuses a choice of calls that nothing would show.
void RequireTraceOrView(const Options& o, const StageView& view) {
  if (!o.trace.empty() || view.wanted()) return;
  for (const auto& [option, text] : {std::pair{"--trace-layer", o.trace_layer},
                                     {"--trace-head", o.trace_head},
                                     {"--trace-step", o.trace_step}}) {
    if (text.empty()) continue;
    FailUsage(option, " requires --trace or ", view.option());
  }
}

/// Several observers as one.
class Observers final : public Observer {
 public:
  void Add(Observer& observer) { all_.push_back(&observer); }
  /// What to hand to the engine: null if there is nobody to watch.
  Observer* get() { return all_.empty() ? nullptr : this; }

  void OnScores(const HeadId& id, std::span<const float> scores) override {
    for (Observer* o : all_) o->OnScores(id, scores);
  }
  void OnWeights(const HeadId& id, std::span<const float> weights, float max,
                 float total) override {
    for (Observer* o : all_) o->OnWeights(id, weights, max, total);
  }
  void OnTile(const HeadId& id, const TileEvent& event) override {
    for (Observer* o : all_) o->OnTile(id, event);
  }
  void OnSelection(const HeadId& id, int block_tokens,
                   std::span<const BlockEvent> blocks) override {
    for (Observer* o : all_) o->OnSelection(id, block_tokens, blocks);
  }
  void OnAttention(int layer, int position,
                   std::span<const float> out) override {
    for (Observer* o : all_) o->OnAttention(layer, position, out);
  }
  void OnLogits(int position, std::span<const float> logits) override {
    for (Observer* o : all_) o->OnLogits(position, logits);
  }

 private:
  std::vector<Observer*> all_;
};

/// One run: what was asked, what came out.
struct Run {
  const StageProgram& program;
  const Options& options;
  const Model& model;
  const Prompt& prompt;
  std::string stage;
  std::string not_materialised;
  Generation generation;
  std::string output;
  std::int64_t kv_bytes = 0;
  std::int64_t packed_bytes = 0;
  /// For a stage that selects: of each step's attention, what choosing took.
  std::vector<double> select_ms = {};
  Isa isa = Isa::kScalar;

  /// A stage that selects had all blocks to read, at every step.
  bool RanExact() const {
    if (!program.sparse) return false;
    const auto sparse = program.sparse();
    const auto tokens = static_cast<std::int64_t>(
        prompt.tokens.size() + generation.attention_ms.size());
    return tokens <= sparse["k"].get<std::int64_t>() *
                         sparse["block_size"].get<std::int64_t>() ||
           tokens < sparse["dense_below"].get<std::int64_t>();
  }

  bool Found() const {
    return prompt.needle && ContainsWord(output, prompt.needle->expected);
  }
  /// The answer is the needle's sentence, word for word.
  bool Verbatim() const {
    return prompt.needle && output == prompt.needle->needle;
  }
};

/// What is known before the answer: printed first, so that a student sees what
/// the model is thinking about.
void PrintQuestion(const Run& run) {
  PrintLine("stage", run.stage);
  PrintLine("model", ModelSummary(run.model));
  if (run.prompt.needle) {
    const NeedleOptions& needle = run.options.prompt.needle;
    PrintLine("needle",
              StrCat('"', ForTerminal(run.prompt.needle->needle),
                     "\" at depth ", needle.depth, ", seed ", needle.seed));
    PrintLine("question", ForTerminal(run.prompt.needle->question));
  }
}

void PrintReport(const Run& run) {
  const Generation& g = run.generation;
  const auto per_token = [](const std::vector<double>& ms) {
    const auto median = Median(ms);
    return median ? Fixed(*median, 3) + " ms/token" : std::string("-");
  };
  std::cout << '\n';
  if (run.prompt.needle) {
    PrintLine("needle found",
              StrCat(run.Found() ? "YES" : "NO", " (looked for \"",
                     ForTerminal(run.prompt.needle->expected), "\"",
                     run.Found() && !run.Verbatim()
                         ? "; the sentence is not the needle's"
                         : "",
                     ")"));
  }
  PrintLine("prompt", Count(run.prompt.tokens.size(), "token"));
  PrintLine("generated", StrCat(Count(g.tokens.size(), "token"),
                                g.stopped ? "" : ", stopped by --max-tokens"));
  PrintLine("prefill", Fixed(g.prefill_s, 2) + " s");
  PrintLine("decode, attention",
            per_token(g.attention_ms) +
                (run.select_ms.empty()
                     ? ""
                     : StrCat(", of it ", Fixed(*Median(run.select_ms), 3),
                              " to choose the blocks")));
  PrintLine("decode, total", per_token(g.total_ms));
  if (run.program.has_tile) {
    PrintLine("tile", Count(run.options.tile, "token"));
  }
  if (run.program.sparse) {
    const auto sparse = run.program.sparse();
    PrintLine(
        "selection",
        StrCat(Count(sparse["k"], "block"), " of ",
               Count(sparse["block_size"], "token"), ", ", sparse["n_probe"],
               " probed, importance ", sparse["importance"].get<std::string>(),
               run.RanExact() ? "; ran exact: that is all blocks" : ""));
  }
  PrintLine("KV cache",
            StrCat(HumanBytes(run.kv_bytes), " (", run.options.kv, ")",
                   run.packed_bytes == 0
                       ? ""
                       : StrCat(", and ", HumanBytes(run.packed_bytes),
                                " of keys packed for probing")));
  PrintLine("ISA, threads",
            StrCat(IsaName(run.isa), ", ", run.options.threads));
}

void PrintJson(const Run& run) {
  using Json = nlohmann::ordered_json;
  const Generation& g = run.generation;
  const NeedleOptions& needle = run.options.prompt.needle;
  const auto median = [](const std::vector<double>& ms) {
    const auto value = Median(ms);
    return value ? Json(*value) : Json();
  };
  Json json;
  json["program"] = run.program.name;
  json["version"] = Version();
  json["stage"] = run.stage;
  json["model"] = ModelName(run.model);
  const bool scenario = run.prompt.needle.has_value();
  json["seed"] = scenario ? Json(needle.seed) : Json();
  json["context"] = scenario ? Json(needle.context) : Json();
  json["depth"] = scenario ? Json(needle.depth) : Json();
  json["needle"] = Json();
  if (scenario) {
    json["needle"] = {{"sentence", run.prompt.needle->needle},
                      {"question", run.prompt.needle->question},
                      {"expected", run.prompt.needle->expected},
                      {"found", run.Found()},
                      {"verbatim", run.Verbatim()}};
  }
  json["output"] = run.output;
  json["tokens"] = {{"prompt", run.prompt.tokens.size()},
                    {"generated", g.tokens.size()}};
  json["prefill_s"] = g.prefill_s;
  json["decode"] = {{"attention_ms", median(g.attention_ms)},
                    {"select_ms", median(run.select_ms)},
                    {"total_ms", median(g.total_ms)}};
  json["kv"] = {{"format", run.options.kv}, {"bytes", run.kv_bytes}};
  json["tile"] = run.program.has_tile ? Json(run.options.tile) : Json();
  json["isa"] = IsaName(run.isa);
  json["threads"] = run.options.threads;
  json["ran_exact"] = run.program.sparse ? Json(run.RanExact()) : Json();
  json["sparse"] = run.program.sparse ? run.program.sparse() : Json();
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

/// Everything that the dump's numbers depend on, and nothing else.
std::map<std::string, std::string> DumpMetadata(const Run& run) {
  std::map<std::string, std::string> metadata = {
      {"format", "kvlab dump 1"},
      {"stage", run.stage},
      {"model", Printable(ModelName(run.model))},
      {"kv", run.options.kv},
      {"not_materialised", run.not_materialised},
      {"axes.attention", "step,layer,head,element"},
      {"axes.logits", "step,token id"},
      {"axes.scores", "layer,head,token"},
      {"axes.weights", "layer,head,token"}};
  if (run.program.has_tile) metadata["tile"] = StrCat(run.options.tile);
  if (run.program.sparse) metadata["sparse"] = run.program.sparse().dump();
  if (run.prompt.needle) {
    const NeedleOptions& needle = run.options.prompt.needle;
    metadata["context"] = StrCat(needle.context);
    metadata["depth"] = StrCat(needle.depth);
    metadata["seed"] = StrCat(needle.seed);
    metadata["needle"] = run.prompt.needle->needle;
    metadata["question"] = run.prompt.needle->question;
  }
  return metadata;
}

nlohmann::ordered_json TraceSettings(const Run& run) {
  using Json = nlohmann::ordered_json;
  const ModelConfig& c = run.model.config;
  return {{"stage", run.stage},
          {"model", ModelName(run.model)},
          {"kv", run.options.kv},
          {"tile", run.program.has_tile ? Json(run.options.tile) : Json()},
          {"sparse", run.program.sparse ? run.program.sparse() : Json()},
          {"layers", c.layers},
          {"heads", c.heads},
          {"kv_heads", c.kv_heads},
          {"head_dim", c.head_dim},
          {"prompt_tokens", run.prompt.tokens.size()},
          {"output", run.output}};
}

/// The text of every token that the cache holds, one by one.
std::vector<std::string> CachedTokens(const Run& run) {
  std::vector<std::string> texts;
  for (const auto* ids : {&run.prompt.tokens, &run.generation.tokens}) {
    for (const int id : *ids) {
      texts.push_back(run.model.tokenizer.Decode(std::vector<int>{id}, false));
    }
  }
  return texts;
}

ViewedRun ForView(const Run& run) {
  ViewedRun viewed{.model = ModelName(run.model),
                   .output = run.output,
                   .tokens = CachedTokens(run),
                   .needle = {}};
  if (run.prompt.needle) {
    viewed.needle = FindTokens(run.model.tokenizer, run.prompt.tokens,
                               run.prompt.needle->needle);
  }
  return viewed;
}

int RunStage(const StageProgram& program, const Options& o) {
  const InterruptGuard interrupt_guard;
  // What can be refused at once is, before any work.
  const Isa isa = o.isa.empty() ? BestIsa() : ParseIsa(o.isa);
  if (program.view != nullptr) RequireTraceOrView(o, *program.view);
  StageView* const view = program.view != nullptr && program.view->wanted()
                              ? program.view
                              : nullptr;
  std::vector<FileOption> outputs = {{"--dump", o.dump}, {"--trace", o.trace}};
  if (view != nullptr) {
    const auto [option, file] = view->file();
    outputs.push_back({option, file});
  }
  RequireDistinctFiles(outputs, {{"--prompt-file", o.prompt.file}});
  for (const FileOption& output : outputs) {
    if (!output.file.empty()) const OutputFile probe(output.file);
  }

  const Model model = LoadModel(o.prompt.model);
  const Prompt prompt = BuildPrompt(model, o.prompt);
  if (o.show_prompt) {
    std::cout << ForTerminal(prompt.text) << '\n';
    return kExitDone;
  }
  CheckLength(model, prompt, o.max_tokens);
  const auto prompt_tokens = static_cast<int>(prompt.tokens.size());
  const TraceFilter trace_filter = ChosenCalls(o, model.config, false);
  if (view != nullptr) {
    view->Begin(ChosenCalls(o, model.config, true), prompt_tokens);
  }
  if (prompt.needle) {
    for (const std::string& warning : prompt.needle->warnings) {
      Warn(warning);
    }
  }

  const Primitives& primitives = PrimitivesFor(isa);
  ThreadPool pool(o.threads);
  const int capacity = static_cast<int>(prompt.tokens.size()) + o.max_tokens;
  Transformer transformer(model.config, model.weights, primitives, pool);
  const KvFormat format = o.kv == "q8" ? KvFormat::kQ8 : KvFormat::kF32;
  const std::unique_ptr<AttentionStage> stage =
      program.make_stage({.primitives = primitives, .tile = o.tile});
  KvCacheShape shape = transformer.CacheShape(format, capacity);
  shape.packed_step = stage->packed_step();
  KvCache cache(shape, primitives);

  Run run{.program = program,
          .options = o,
          .model = model,
          .prompt = prompt,
          .stage = std::string(stage->id()),
          .not_materialised = std::string(stage->not_materialised()),
          .generation = {},
          .output = {},
          .isa = isa};
  if (!o.json) {
    PrintQuestion(run);
    std::cout << std::flush;
  }

  ProgressLine progress;
  StreamingDecoder decoder(model.tokenizer);
  bool first = true;
  const auto show = [&](const std::string& text) {
    if (o.json) return;
    if (first) {
      progress.Clear();
      std::cout << "answer              ";
      first = false;
    }
    std::cout << ForTerminal(text) << std::flush;
  };
  Observers observers;
  DumpRecorder dump(model.config, prompt_tokens);
  if (!o.dump.empty()) observers.Add(dump);
  TraceRecorder trace(trace_filter, prompt_tokens);
  if (!o.trace.empty()) observers.Add(trace);
  if (view != nullptr) observers.Add(*view);
  std::vector<double> shares;
  const std::vector<int> no_stop;
  progress.Show(0);
  run.generation = Generate(transformer, cache, *stage, prompt.tokens,
                            {.max_tokens = o.max_tokens,
                             .stop_ids = o.ignore_eos ? no_stop : model.eos_ids,
                             .prefill_chunk = o.prefill_chunk,
                             .record_importance = stage->uses_importance(),
                             .observer = observers.get(),
                             .progress =
                                 [&](double done) {
                                   CheckInterrupted();
                                   progress.Show(done);
                                 },
                             .on_token =
                                 [&](int token) {
                                   CheckInterrupted();
                                   if (program.select_share) {
                                     shares.push_back(program.select_share());
                                   }
                                   show(decoder.Push(token));
                                 }});
  show(decoder.Flush());
  run.output = model.tokenizer.Decode(run.generation.tokens, true);
  run.kv_bytes = cache.used_bytes();
  run.packed_bytes = cache.packed_bytes();
  // The share before the first token is that of prefill.
  for (std::size_t i = 0; i < run.generation.attention_ms.size(); ++i) {
    if (shares.empty()) break;
    shares.push_back(program.select_share());
    run.select_ms.push_back(run.generation.attention_ms[i] * shares[i + 1]);
  }

  if (o.json) {
    PrintJson(run);
  } else {
    std::cout << '\n';
    PrintReport(run);
    if (view != nullptr) view->Print(ForView(run));
  }
  FinishStdout();  // a run that cannot report must not replace a file
  // None is put in place before all are written.
  std::optional<OutputFile> dump_file, trace_file, view_file;
  if (!o.dump.empty()) {
    dump.Write(dump_file.emplace(o.dump), DumpMetadata(run), prompt.tokens,
               run.generation.tokens);
  }
  if (!o.trace.empty()) {
    trace.Write(trace_file.emplace(o.trace), TraceSettings(run),
                CachedTokens(run));
  }
  if (view != nullptr) {
    const std::string contents = view->Contents(ForView(run));
    const std::string file = view->file().second;
    if (!file.empty()) view_file.emplace(file).Write(contents);
  }
  for (auto* file : {&dump_file, &trace_file, &view_file}) {
    if (*file) (*file)->Commit();
  }
  return kExitDone;
}

}  // namespace

int StageMain(int argc, const char* const* argv, const StageProgram& program) {
  return RunProgram(argc, argv, program.name, program.description,
                    [&](CLI::App& app) -> ProgramBody {
                      const auto options = std::make_shared<Options>();
                      DeclareOptions(app, program, *options);
                      return [&program, options] {
                        return RunStage(program, *options);
                      };
                    });
}

}  // namespace kvlab
