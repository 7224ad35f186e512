/// \file
/// Lesson 9-3: what q8 keys and values cost in accuracy, on the model's own
/// queries and on chosen inputs.
///
/// The model reads one text twice, with three_pass over an f32 cache and with
/// q8_single_pass over a q8 cache, both given the same tokens: the prompt, then
/// the f32 run's greedy answer. Most of the prompt is prefilled (three-pass
/// attention over what the cache holds); its last positions and the answer are
/// decoded by the two stages, and there the queries, keys and values of the f32
/// run are taken for the arms of accuracy.h.
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/parallel.h"
#include "common/base/text.h"
#include "common/engine/generate.h"
#include "common/lab/capture_stage.h"
#include "common/lab/cli.h"
#include "common/lab/csv.h"
#include "common/lab/error_plot.h"
#include "common/lab/gnuplot.h"
#include "common/lab/interrupt.h"
#include "common/lab/model_prompt.h"
#include "common/lab/progress_line.h"
#include "common/loader/output_file.h"
#include "day09_kv_q8/accuracy.h"
#include "day09_kv_q8/accuracy_inputs.h"
#include "day09_kv_q8/accuracy_report.h"
#include "day09_kv_q8/q8_single_pass.h"
#include "day09_kv_q8/three_pass.h"

namespace kvlab {
namespace {

constexpr char kName[] = "day09_accuracy";

/// Prompt tokens whose logits are held at a time: of a vocabulary of 150,000,
/// 77 MB for the two runs.
constexpr int kLogitChunk = 64;

struct Options {
  PromptOptions prompt;
  int max_tokens = 40;
  int positions = 8;
  int tokens = 2048;
  int head_dim = 128;
  int draws = 32;
  int threads = PhysicalCores();
  std::string isa;
  bool json = false;
  std::string csv;
  std::string svg;
  std::string svg_heads;
};

void DeclareOptions(CLI::App& app, Options& o) {
  DeclarePromptOptions(app, o.prompt);
  app.get_option("--seed")->description(
      "Which filler facts, and which chosen inputs, are drawn");
  const auto number = [&](const char* name, int& value, std::uint64_t most,
                          const char* what) {
    return app.add_option(name, value, what)
        ->transform(WholeNumber(1, most))
        ->capture_default_str()
        ->type_name("N");
  };
  number("--max-tokens", o.max_tokens, 10'000'000, "Most tokens of the answer");
  number("--positions", o.positions, 1'000'000,
         "Positions at the end of the prompt to measure, beside the answer's");
  const char* chosen = "Chosen inputs";
  number("--tokens", o.tokens, 65'536, "Tokens of each")->group(chosen);
  number("--head-dim", o.head_dim, 1024, "Elements of a row")->group(chosen);
  number("--draws", o.draws, 10'000, "Times that each is drawn")->group(chosen);
  DeclareMachineOptions(app, o.threads, o.isa);
  app.add_flag("--json", o.json, "Report as one JSON object");
  const auto output = [&](const char* name, std::string& value,
                          const char* what) {
    app.add_option(name, value, what)
        ->transform(OutputName())
        ->type_name("FILE");
  };
  output("--csv", o.csv, "Write every measurement as a table");
  output("--svg", o.svg,
         "Draw the error of each input and layer (needs gnuplot)");
  output("--svg-heads", o.svg_heads,
         "Draw the error of each layer and head (needs gnuplot)");
}

// --- The model's own queries -------------------------------------------------

/// Keeps the attention outputs of the last step.
class LastAttention final : public Observer {
 public:
  explicit LastAttention(int layers)
      : outputs(static_cast<std::size_t>(layers)) {}
  void OnAttention(int layer, int /*position*/,
                   std::span<const float> out) override {
    outputs[layer].assign(out.begin(), out.end());
  }
  std::vector<std::vector<double>> outputs;  // [layers][heads * head_dim]
};

/// One of the two runs: a transformer with a cache and a stage of its own.
struct ModelRun {
  ModelRun(const Model& model, const Primitives& primitives, ThreadPool& pool,
           KvFormat format, int capacity)
      : transformer(model.config, model.weights, primitives, pool),
        cache(transformer.CacheShape(format, capacity), primitives),
        attention(model.config.layers) {}

  Transformer transformer;
  KvCache cache;
  LastAttention attention;
};

class ModelMeasurement {
 public:
  ModelMeasurement(const Options& o, const Model& model, const Prompt& prompt,
                   const Primitives& primitives, AccuracyReport& report)
      : o_(o),
        model_(model),
        prompt_(prompt.tokens),
        primitives_(primitives),
        report_(report),
        pool_(o.threads),
        f32_(model, primitives, pool_, KvFormat::kF32, Capacity()),
        q8_(model, primitives, pool_, KvFormat::kQ8, Capacity()),
        three_pass_(primitives),
        single_pass_(primitives, kTileTokens),
        capture_(primitives, three_pass_,
                 [this](const AttendInput& input, std::span<const float>) {
                   Measure(input);
                 }) {
    const ModelConfig& c = model.config;
    report.layers = c.layers;
    report.heads = c.heads;
    report.by_layer.resize(static_cast<std::size_t>(c.layers));
    report.by_head.resize(static_cast<std::size_t>(c.layers) * c.heads);
    report.as_run.resize(static_cast<std::size_t>(c.layers));
  }

  /// Returns the answer.
  std::vector<int> Run() {
    const std::size_t decoded = std::min<std::size_t>(
        static_cast<std::size_t>(o_.positions), prompt_.size() - 1);
    const std::size_t prefilled = prompt_.size() - decoded;
    Prefill(prompt_.first(prefilled));
    std::span<const float> logits;
    for (const int token : prompt_.subspan(prefilled)) logits = Decode(token);
    std::vector<int> answer;
    while (std::ssize(answer) < o_.max_tokens) {
      const int token = Argmax(logits);
      if (std::ranges::find(model_.eos_ids, token) != model_.eos_ids.end()) {
        break;
      }
      answer.push_back(token);
      logits = Decode(token);
    }
    return answer;
  }

 private:
  int Capacity() const {
    return static_cast<int>(prompt_.size()) + o_.max_tokens;
  }

  void Prefill(std::span<const int> tokens) {
    ProgressLine progress;
    std::vector<float> f32, q8;
    for (std::size_t done = 0; done < tokens.size();) {
      CheckInterrupted();
      progress.Show(static_cast<double>(done) /
                    static_cast<double>(tokens.size()));
      const std::size_t count =
          std::min<std::size_t>(kLogitChunk, tokens.size() - done);
      const auto run = [&](ModelRun& run, AttentionStage& stage,
                           std::vector<float>& logits) {
        run.transformer.Prefill(tokens.subspan(done, count), run.cache, stage,
                                {.chunk = kLogitChunk, .all_logits = &logits});
      };
      run(f32_, capture_, f32);
      run(q8_, single_pass_, q8);
      const auto vocab = static_cast<std::size_t>(model_.config.vocab_size);
      for (std::size_t t = 0; t < count; ++t) {
        report_.prefill_logits.Add(std::span(f32).subspan(t * vocab, vocab),
                                   std::span(q8).subspan(t * vocab, vocab));
      }
      done += count;
    }
  }

  /// The same token to both runs; returns the logits of the f32 one.
  std::span<const float> Decode(int token) {
    CheckInterrupted();
    const auto f32 = f32_.transformer.Decode(token, f32_.cache, capture_,
                                             {.observer = &f32_.attention});
    const auto q8 = q8_.transformer.Decode(token, q8_.cache, single_pass_,
                                           {.observer = &q8_.attention});
    report_.decode_logits.Add(f32, q8);
    for (int layer = 0; layer < report_.layers; ++layer) {
      const std::vector<double>& out = q8_.attention.outputs[layer];
      const std::vector<double>& exact = f32_.attention.outputs[layer];
      const auto d = static_cast<std::size_t>(model_.config.head_dim);
      for (std::size_t i = 0; i < out.size(); i += d) {
        report_.as_run[layer].Add(std::span(out).subspan(i, d),
                                  std::span(exact).subspan(i, d));
      }
    }
    return f32;
  }

  /// A decode step of one GQA group of the f32 run. Comes from one thread: the
  /// engine has an observer.
  void Measure(const AttendInput& input) {
    CheckInterrupted();
    const AccuracyHead head(primitives_, input.kv);
    for (int g = 0; g < input.group; ++g) {
      const QueryOutcome outcome = head.Measure(
          {input.Query(g), static_cast<std::size_t>(input.kv.head_dim)});
      report_.by_layer[input.layer].Add(outcome);
      report_.by_head[input.layer * report_.heads + input.first_head + g].Add(
          outcome);
    }
  }

  const Options& o_;
  const Model& model_;
  std::span<const int> prompt_;
  const Primitives& primitives_;
  AccuracyReport& report_;
  ThreadPool pool_;
  ModelRun f32_, q8_;
  ThreePass three_pass_;
  Q8SinglePass single_pass_;
  CaptureStage capture_;
};

// --- Chosen inputs -----------------------------------------------------------

void MeasureInputs(const Options& o, const Primitives& primitives,
                   AccuracyReport& report) {
  for (const InputKind kind : kInputKinds) {
    report.inputs.push_back({std::string(InputKindName(kind)), {}});
  }
  GaussianSource source(o.prompt.needle.seed);
  for (int draw = 0; draw < o.draws; ++draw) {
    // All kinds are made of the same deviates.
    const AccuracyInput drawn(o.tokens, o.head_dim, source);
    for (std::size_t i = 0; i < kInputKinds.size(); ++i) {
      CheckInterrupted();
      const AccuracyInput input = drawn.As(kInputKinds[i]);
      const KvHeadView kv = input.kv();
      report.inputs[i].errors.Add(
          AccuracyHead(primitives, kv).Measure(input.query()));
    }
  }
}

// --- The report --------------------------------------------------------------

void PrintText(const Options& o, const Model& model, const Prompt& prompt,
               std::size_t answer_tokens, const std::string& answer,
               const AccuracyReport& report) {
  PrintLine("model", ModelSummary(model));
  PrintLine("prompt", Count(prompt.tokens.size(), "token"));
  PrintLine("answer (f32)", StrCat(ForTerminal(answer), " (",
                                   Count(answer_tokens, "token"), ")"));
  PrintLine("own queries",
            StrCat("of ", Count(report.decode_logits.positions(), "position"),
                   ", the last ones of the prompt and the answer's"));
  PrintLine("chosen inputs",
            StrCat(Count(o.tokens, "token"), ", head_dim ", o.head_dim, ", ",
                   Count(o.draws, "draw"), " of seed ", o.prompt.needle.seed));
  std::cout << '\n' << AccuracyText(report);
}

void PrintJson(const Options& o, const Model& model, const Prompt& prompt,
               std::size_t answer_tokens, const std::string& answer, Isa isa,
               const AccuracyReport& report) {
  using Json = nlohmann::ordered_json;
  const ScoreErrors scores = report.scores();
  Json json;
  json["program"] = kName;
  json["version"] = Version();
  json["model"] = ModelName(model);
  json["seed"] = o.prompt.needle.seed;
  json["output"] = answer;
  json["tokens"] = {{"prompt", prompt.tokens.size()},
                    {"generated", answer_tokens}};
  json["inputs"] = {
      {"tokens", o.tokens}, {"head_dim", o.head_dim}, {"draws", o.draws}};
  json["isa"] = IsaName(isa);
  json["threads"] = o.threads;
  json["bound"] = {{"scores", scores.scores},
                   {"violations", scores.violations},
                   {"worst_error_over_bound", scores.worst_ratio}};
  json["results"] = AccuracyRows(report);
  std::cout << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

/// Writes the files that were asked for; none is put in place before all are
/// written.
void WriteFiles(const Options& o, const Model& model,
                const AccuracyReport& report) {
  const std::string of =
      StrCat(Printable(ModelName(model), 30), ", ",
             Count(report.decode_logits.positions(), "position"));
  std::optional<OutputFile> csv, svg, svg_heads;
  if (!o.csv.empty()) csv.emplace(o.csv).Write(CsvText(AccuracyRows(report)));
  if (!o.svg.empty()) {
    svg.emplace(o.svg).Write(DrawSvg(AccuracyPlotScript(
        report, StrCat("Chosen inputs of ", Count(o.tokens, "token"),
                       "; layers of ", of))));
  }
  if (!o.svg_heads.empty()) {
    svg_heads.emplace(o.svg_heads)
        .Write(DrawSvg(ErrorPlotScript(
            AccuracyHeadErrors(report),
            "What q8 costs: relative L2 error of each layer and head",
            StrCat(of, ", a scale per row"))));
  }
  for (auto* file : {&csv, &svg, &svg_heads}) {
    if (*file) (*file)->Commit();
  }
}

int Run(const Options& o) {
  const InterruptGuard interrupt_guard;
  const Isa isa = o.isa.empty() ? BestIsa() : ParseIsa(o.isa);
  RequireDistinctFiles(
      {{"--csv", o.csv}, {"--svg", o.svg}, {"--svg-heads", o.svg_heads}},
      {{"--prompt-file", o.prompt.file}});
  for (const std::string& file : {o.csv, o.svg, o.svg_heads}) {
    if (!file.empty()) const OutputFile probe(file);
  }
  if (!(o.svg.empty() && o.svg_heads.empty()) && !HaveGnuplot()) {
    Fail(o.svg.empty() ? "--svg-heads: " : "--svg: ", kNoGnuplot);
  }
  const Primitives& primitives = PrimitivesFor(isa);
  const Model model = LoadModel(o.prompt.model);
  const Prompt prompt = BuildPrompt(model, o.prompt);
  CheckLength(model, prompt, o.max_tokens);
  if (prompt.tokens.size() < 2) {
    FailUsage(
        "the prompt has 1 token: expected at least 2, to read and to "
        "measure");
  }

  AccuracyReport report;
  const std::vector<int> tokens =
      ModelMeasurement(o, model, prompt, primitives, report).Run();
  const std::string answer = model.tokenizer.Decode(tokens, true);
  MeasureInputs(o, primitives, report);

  if (o.json) {
    PrintJson(o, model, prompt, tokens.size(), answer, isa, report);
  } else {
    PrintText(o, model, prompt, tokens.size(), answer, report);
  }
  FinishStdout();  // a run that cannot report must not replace a file
  WriteFiles(o, model, report);
  RequireWithinBounds(report);
  return kExitDone;
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  using namespace kvlab;
  return RunProgram(
      argc, argv, kName,
      "What q8 keys and values cost: attention and logits against f32, on the "
      "model's own queries and on chosen inputs.",
      [](CLI::App& app) -> ProgramBody {
        const auto options = std::make_shared<Options>();
        DeclareOptions(app, *options);
        return [options] { return Run(*options); };
      });
}
