#include "day10_sparse/needle_table.h"

#include <algorithm>
#include <chrono>

#include "common/base/error.h"
#include "common/base/quantile.h"
#include "day09_kv_q8/online_softmax.h"
#include "day09_kv_q8/q8_single_pass.h"
#include "day09_kv_q8/three_pass.h"
#include "day10_sparse/choice_quality.h"
#include "day10_sparse/needle_why.h"

namespace kvlab {
namespace {

/// A stage is timed several times while all of them together take less.
constexpr double kTimingSeconds = 0.5;
constexpr int kMostRounds = 9;

std::optional<std::size_t> FirstDifference(const NeedleRun& a,
                                           const NeedleRun& b) {
  const auto [x, y] = std::ranges::mismatch(a.tokens, b.tokens);
  if (x == a.tokens.end() && y == b.tokens.end() && a.stopped == b.stopped) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(x - a.tokens.begin());
}

/// All rows of one KV format.
class FormatRows {
 public:
  FormatRows(const TableSettings& settings, const Model& model,
             const Prompt& prompt, const Primitives& primitives,
             KvFormat format, const std::function<void(double)>& check)
      : settings_(settings),
        model_(model),
        prompt_(prompt),
        primitives_(primitives),
        format_(format),
        pool_(settings.threads),
        transformer_(model.config, model.weights, primitives, pool_),
        cache_(Shape(), primitives) {
    generate_ = {
        .max_tokens = settings.max_tokens,
        .stop_ids = model.eos_ids,
        .record_importance = settings.sparse.importance != ImportanceUse::kOff,
        .progress = check,
        .on_token = [check](int) { check(1); }};
  }

  std::vector<NeedleRun> Run() {
    if (format_ == KvFormat::kF32) {
      AddExact(std::make_unique<ThreePass>(primitives_));
      AddExact(std::make_unique<OnlineSoftmaxStage>(primitives_, kTileTokens));
    } else {
      AddExact(std::make_unique<Q8SinglePass>(primitives_, kTileTokens));
    }
    for (const int k : settings_.ks) AddSparse(k, false);
    Measure(*rows_.front().stage);
    AddSparse(*std::ranges::min_element(settings_.ks), true);
    Measure(*rows_.back().stage);

    const NeedleRun exact = rows_.front().run;
    std::vector<NeedleRun> runs;
    for (Row& row : rows_) {
      NeedleRun& run = row.run;
      run.first_difference = FirstDifference(run, exact);
      if (run.sparse && prompt_.needle) {
        run.why = WhyMissed({.found = run.found,
                             .exact_found = exact.found,
                             .raw = settings_.prompt.raw,
                             .sparse_prefill = run.sparse->sparse_prefill,
                             .choices = row.choices});
      }
      runs.push_back(std::move(run));
    }
    return runs;
  }

 private:
  struct Row {
    NeedleRun run;
    std::unique_ptr<AttentionStage> stage;
    std::unique_ptr<SparseTimes> times = {};
    std::vector<double> attention_ms = {};
    std::vector<double> total_ms = {};
    ChoiceSummary choices = {};
  };

  KvCacheShape Shape() const {
    KvCacheShape shape = transformer_.CacheShape(
        format_,
        static_cast<int>(prompt_.tokens.size()) + settings_.max_tokens);
    shape.packed_step = SparseTopK(primitives_, settings_.sparse).packed_step();
    return shape;
  }

  void AddExact(std::unique_ptr<AttentionStage> stage) {
    Row row;
    row.run.stage = stage->id();
    row.stage = std::move(stage);
    rows_.push_back(std::move(row));
  }

  void AddSparse(int k, bool sparse_prefill) {
    Row row;
    row.run.sparse = settings_.sparse;
    row.run.sparse->k = k;
    row.run.sparse->sparse_prefill = sparse_prefill;
    auto stage = std::make_unique<SparseTopK>(primitives_, *row.run.sparse);
    row.times = std::make_unique<SparseTimes>();
    stage->Time(row.times.get());
    row.run.stage = stage->id();
    row.stage = std::move(stage);
    rows_.push_back(std::move(row));
  }

  /// Reads the prompt with `reader`; runs the rows that have not been run.
  void Measure(AttentionStage& reader) {
    const ReadPrompt read =
        Prefill(transformer_, cache_, reader, prompt_.tokens, generate_);
    const std::span<Row> rows = std::span(rows_).subspan(measured_);
    for (Row& row : rows) {
      if (row.times) row.times->TakeSelectShare();  // what prefill took
    }
    // In turns, so that a busy moment of the machine does not hit one alone.
    const auto begin = std::chrono::steady_clock::now();
    int rounds = kMostRounds;
    for (int round = 0; round < rounds; ++round) {
      for (Row& row : rows) Decode(row, read);
      if (round > 0) continue;
      const std::chrono::duration<double> once =
          std::chrono::steady_clock::now() - begin;
      rounds = std::clamp(static_cast<int>(kTimingSeconds / once.count()), 1,
                          kMostRounds);
    }
    for (Row& row : rows) Finish(row, read);
    measured_ = rows_.size();
  }

  void Decode(Row& row, const ReadPrompt& read) {
    row.stage->BeginPrompt();
    Generation g = Continue(transformer_, cache_, *row.stage, read, generate_);
    row.attention_ms.insert(row.attention_ms.end(), g.attention_ms.begin(),
                            g.attention_ms.end());
    row.total_ms.insert(row.total_ms.end(), g.total_ms.begin(),
                        g.total_ms.end());
    row.run.tokens = std::move(g.tokens);
    row.run.stopped = g.stopped;
  }

  void Finish(Row& row, const ReadPrompt& read) {
    NeedleRun& run = row.run;
    run.kv = format_;
    run.prefill_s = read.prefill_s;
    run.attention_ms = Median(row.attention_ms);
    run.total_ms = Median(row.total_ms);
    run.output = model_.tokenizer.Decode(run.tokens, true);
    if (prompt_.needle) {
      run.found = ContainsWord(run.output, prompt_.needle->expected);
      run.verbatim = run.output == prompt_.needle->needle;
    }
    const auto generated = static_cast<int>(run.tokens.size());
    const int steps = run.stopped ? generated : generated - 1;
    run.kv_bytes = static_cast<std::int64_t>(
        2.0 * (read.tokens + steps) * model_.config.layers *
        model_.config.kv_heads * BytesOfRow());
    run.exact_read_bytes = BytesOfRows(2 * RowsOfTokens(steps), steps);
    if (!run.sparse) {
      if (steps > 0) run.read_bytes = run.exact_read_bytes;
      return;
    }
    if (run.attention_ms) {
      run.select_ms = *run.attention_ms * row.times->TakeSelectShare();
    }
    run.ran_exact =
        steps > 0 && (run.sparse->k >= BlockCount(read.tokens + steps,
                                                  run.sparse->block_tokens) ||
                      read.tokens + steps < run.sparse->dense_below);
    if (steps > 0) Observe(row, read, steps);
  }

  /// The same again, not timed: what was chosen and how much of the attention
  /// that is.
  void Observe(Row& row, const ReadPrompt& read, int steps) {
    const ModelConfig& c = model_.config;
    std::vector<ChoiceQuality> quality(
        static_cast<std::size_t>(c.layers * c.heads));
    SparseTopK stage(primitives_, *row.run.sparse,
                     std::make_unique<QualityWatch>(
                         std::make_unique<TopKSelector>(), quality, c.heads));
    ChoiceRecorder recorder(
        NeedleBlocks(model_, prompt_, row.run.sparse->block_tokens),
        row.run.sparse->n_probe, c.heads / c.kv_heads);
    GenerateOptions generate = generate_;
    generate.observer = &recorder;
    const Generation g = Continue(transformer_, cache_, stage, read, generate);
    KVLAB_CHECK(g.tokens == row.run.tokens);
    ChoiceQuality all;
    for (const ChoiceQuality& head : quality) all.Merge(head);
    row.run.mass = all.mean_recall();
    row.run.read_bytes =
        BytesOfRows(static_cast<double>(recorder.RowsRead()), steps);
    row.choices = recorder.summary();
  }

  /// Tokens that all heads together see in `steps` decode steps.
  double RowsOfTokens(int steps) const {
    double tokens = 0;
    for (int i = 1; i <= steps; ++i) {
      tokens += static_cast<double>(prompt_.tokens.size()) + i;
    }
    return tokens * model_.config.layers * model_.config.kv_heads;
  }

  /// A row of keys or values has head_dim numbers, in q8 a scale too.
  int BytesOfRow() const {
    const int d = model_.config.head_dim;
    return format_ == KvFormat::kF32 ? 4 * d : d + 4;
  }
  double BytesOfRows(double rows, int steps) const {
    return steps == 0 ? 0 : rows * BytesOfRow() / steps;
  }

  const TableSettings& settings_;
  const Model& model_;
  const Prompt& prompt_;
  const Primitives& primitives_;
  KvFormat format_;
  ThreadPool pool_;
  Transformer transformer_;
  KvCache cache_;
  GenerateOptions generate_;
  std::vector<Row> rows_;
  std::size_t measured_ = 0;
};

}  // namespace

std::string_view FormatName(KvFormat format) {
  return format == KvFormat::kF32 ? "f32" : "q8";
}

std::vector<NeedleRun> RunTable(const TableSettings& settings,
                                const Model& model, const Prompt& prompt,
                                const Primitives& primitives,
                                const std::function<void(double)>& check) {
  std::vector<NeedleRun> runs;
  for (const KvFormat format : settings.formats) {
    FormatRows rows(settings, model, prompt, primitives, format, check);
    for (NeedleRun& run : rows.Run()) runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace kvlab
