/// \file
/// lab_bench: how fast the kernels are on this machine.
///
/// Every benchmark times two things in turn, in one loop: its kernel, and the
/// most that the machine can do for the same work - reading the same number of
/// bytes (attention, matrix times vector), or OpenBLAS's sgemm (matrix times
/// many vectors). Machines drift by half for seconds at a time; the ratio of
/// two neighbours drifts less. What is reported is the median over the rounds.
#include <benchmark/benchmark.h>
#include <cblas.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "common/base/quantile.h"
#include "common/engine/layers.h"
#include "common/lab/cli.h"
#include "common/lab/interrupt.h"
#include "common/lab/synthetic.h"
#include "common/loader/output_file.h"
#include "common/simd/primitives.h"
#include "day09_kv_q8/online_softmax.h"
#include "day09_kv_q8/q8_single_pass.h"
#include "day09_kv_q8/three_pass.h"
#include "day09_kv_q8/two_pass.h"
#include "tests/bench/report.h"

namespace kvlab::bench {
namespace {

/// What a benchmark does; `turn` counts up, so that rings move on.
struct Work {
  std::function<void(std::int64_t turn)> kernel;
  std::function<void(std::int64_t turn)> limit;
  double bytes = 0;        ///< that one turn reads
  double flops = 0;        ///< of one turn, where they are what counts
  std::int64_t turns = 1;  ///< until memory is the same again
};

/// One iteration is one round: some turns of the limit, as many of the kernel.
void Measure(benchmark::State& state, const Work& work) {
  using Clock = std::chrono::steady_clock;
  // Long enough for the clock and the wake-up of threads not to matter.
  const auto some =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(16e6 / work.bytes));
  std::vector<double> kernel, limit, share;
  std::int64_t turn = 0;
  const auto timed = [&](const auto& body, std::int64_t first) {
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < some; ++i) body(first + i);
    return std::chrono::duration<double>(Clock::now() - begin).count() /
           static_cast<double>(some);
  };
  timed(work.limit, turn);
  timed(work.kernel, turn);
  for (auto _ : state) {
    CheckInterrupted();
    limit.push_back(timed(work.limit, turn + work.turns / 2));
    kernel.push_back(timed(work.kernel, turn));
    share.push_back(limit.back() / kernel.back());
    state.SetIterationTime(kernel.back());
    turn += some;
  }
  state.counters[kSeconds] = Quantile(kernel, 0.5);
  state.counters[kLimitSeconds] = Quantile(limit, 0.5);
  state.counters[kShare] = Quantile(share, 0.5);
  state.counters[kShareLow] = Quantile(share, 0.25);
  state.counters[kShareHigh] = Quantile(share, 0.75);
  state.counters[kBytes] = work.bytes;
  if (work.flops > 0) state.counters[kFlops] = work.flops;
}

/// Builds the work when its benchmark runs, since memory is large.
void Register(const std::string& name, int rounds, std::function<Work()> make) {
  benchmark::RegisterBenchmark(
      name.c_str(),
      [make = std::move(make)](benchmark::State& state) {
        try {
          CheckInterrupted();
          Measure(state, make());
        } catch (const Error& error) {
          state.SkipWithError(error.what());
        }
      })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->Iterations(rounds);
}

ThreadPool& Threads(int threads) {
  static std::map<int, std::unique_ptr<ThreadPool>> pools;
  auto& pool = pools[threads];
  if (!pool) pool = std::make_unique<ThreadPool>(threads);
  return *pool;
}

// --- Attention
// ----------------------------------------------------------------

enum class Stage {
  kThreePass,
  kOnlineSoftmax,
  kQ8SinglePass,
  kTwoPass,
  kRescan
};

constexpr std::pair<Stage, const char*> kStages[] = {
    {Stage::kThreePass, "three_pass"},
    {Stage::kOnlineSoftmax, "online_softmax"},
    {Stage::kQ8SinglePass, "q8_single_pass"},
    {Stage::kTwoPass, "two_pass"},
    {Stage::kRescan, "two_pass_rescan"}};

std::unique_ptr<AttentionStage> MakeStage(Stage stage, const Primitives& p) {
  switch (stage) {
    case Stage::kThreePass:
      return std::make_unique<ThreePass>(p);
    case Stage::kOnlineSoftmax:
      return std::make_unique<OnlineSoftmaxStage>(p, kTileTokens);
    case Stage::kQ8SinglePass:
      return std::make_unique<Q8SinglePass>(p, kTileTokens);
    case Stage::kTwoPass:
    case Stage::kRescan:
      return std::make_unique<TwoPass>(p, stage == Stage::kRescan);
  }
  return nullptr;
}

KvFormat FormatOf(Stage stage) {
  return stage == Stage::kThreePass || stage == Stage::kOnlineSoftmax
             ? KvFormat::kF32
             : KvFormat::kQ8;
}

/// One attention benchmark.
struct AttentionCase {
  Stage stage;
  Isa isa;
  AttentionShape shape;
  int threads = 1;
};

/// The ring of a shape; the last one of each format is kept, since successive
/// benchmarks often share it.
std::shared_ptr<const KvRing> RingOf(const AttentionShape& shape) {
  static std::map<KvFormat, std::shared_ptr<const KvRing>> kept;
  auto& ring = kept[shape.format];
  if (!ring || !(ring->shape() == shape)) {
    ring.reset();
    ring = std::make_shared<const KvRing>(shape);
  }
  return ring;
}

Work AttentionWork(const AttentionCase& c) {
  struct Run {
    std::shared_ptr<const KvRing> ring;
    std::unique_ptr<AttentionStage> stage;
    std::vector<float> out;
  };
  auto run = std::make_shared<Run>();
  const AttentionShape& shape = c.shape;
  run->ring = RingOf(shape);
  run->stage = MakeStage(c.stage, PrimitivesFor(c.isa));
  run->out.resize(static_cast<std::size_t>(shape.heads) * shape.head_dim);
  ThreadPool& pool = Threads(c.threads);
  const auto attend = [run, &pool, shape](std::int64_t turn) {
    pool.ParallelFor(
        shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
          const int group = shape.heads / shape.kv_heads;
          for (auto head = static_cast<int>(begin); head < end; ++head) {
            const AttendInput input{.first_head = head * group,
                                    .position = shape.tokens - 1,
                                    .group = group,
                                    .queries = run->ring->queries().subspan(
                                        static_cast<std::size_t>(head) * group *
                                        QueryStride(shape.head_dim)),
                                    .kv = run->ring->View(turn, head)};
            const auto row = static_cast<std::size_t>(group) * shape.head_dim;
            run->stage->Attend(
                input, std::span(run->out).subspan(head * row, row), nullptr);
          }
        });
    benchmark::DoNotOptimize(run->out.data());
  };
  return {
      .kernel = attend,
      .limit = [run, &pool](std::int64_t turn) { run->ring->Read(pool, turn); },
      .bytes = static_cast<double>(run->ring->bytes()),
      .turns = run->ring->layers()};
}

void RegisterAttention(const AttentionCase& c, int rounds) {
  const AttentionShape& s = c.shape;
  std::string name = "attention/";
  for (const auto& [stage, id] : kStages) {
    if (stage == c.stage) name += id;
  }
  name += "/" + std::string(IsaName(c.isa)) + "/d" +
          std::to_string(s.head_dim) + "/" +
          std::to_string(s.heads / s.kv_heads) + ":1/n" +
          std::to_string(s.tokens) + (s.cold ? "/cold/" : "/hot/") +
          std::to_string(c.threads) + "t";
  Register(name, rounds, [c] { return AttentionWork(c); });
}

AttentionShape ShapeOf(Stage stage, int head_dim, int group, int tokens,
                       bool cold) {
  return {.format = FormatOf(stage),
          .head_dim = head_dim,
          .heads = 16,
          .kv_heads = 16 / group,
          .tokens = tokens,
          .cold = cold};
}

// --- Matrices
// -----------------------------------------------------------------

const ModelShape kLabModel{"lab_model", 128, 4, 2, 128, 256, 3072};
const ModelShape kQwen3{"qwen3_0.6b", 1024, 16, 8, 128, 3072, 151936};

/// All matrices of a set times `tokens` vectors of inputs.
struct MatrixRun {
  MatrixRun(const WeightRing::Shapes& shapes, bool cold, int tokens)
      : weights(shapes, cold), tokens(tokens) {
    std::int64_t rows = 0, cols = 0;
    for (const auto& [r, c] : shapes) {
      rows = std::max(rows, r);
      cols = std::max(cols, c);
    }
    x = Gaussian(cols * tokens);
    out.resize(static_cast<std::size_t>(rows * tokens));
  }
  void Multiply(ThreadPool& pool, const Primitives& primitives,
                std::int64_t turn) {
    for (std::size_t i = 0; i < weights.shapes().size(); ++i) {
      const WeightMatrix w = weights.Matrix(turn, i);
      Matmul(pool, primitives,
             std::span<const float>(x).first(
                 static_cast<std::size_t>(w.cols * tokens)),
             tokens, w, out.data());
    }
    benchmark::DoNotOptimize(out.data());
  }

  WeightRing weights;
  int tokens;
  std::vector<float> x, out;
};

void RegisterMatvec(const std::string& what, const WeightRing::Shapes& shapes,
                    Isa isa, bool cold, int threads, int rounds) {
  const std::string name = "matvec/" + what + "/" + std::string(IsaName(isa)) +
                           (cold ? "/cold/" : "/hot/") +
                           std::to_string(threads) + "t";
  Register(name, rounds, [=] {
    auto run = std::make_shared<MatrixRun>(shapes, cold, 1);
    ThreadPool& pool = Threads(threads);
    return Work{
        .kernel =
            [=, &pool](std::int64_t turn) {
              run->Multiply(pool, PrimitivesFor(isa), turn);
            },
        .limit = [=,
                  &pool](std::int64_t turn) { run->weights.Read(pool, turn); },
        .bytes = static_cast<double>(run->weights.bytes()),
        .turns = run->weights.sets()};
  });
}

/// Against sgemm over the same weights widened to f32 beforehand.
void RegisterMatmul(const std::string& what, const WeightRing::Shapes& shapes,
                    Isa isa, int tokens, int threads, int rounds) {
  const std::string name = "matmul/" + what + "/" + std::string(IsaName(isa)) +
                           "/t" + std::to_string(tokens) + "/" +
                           std::to_string(threads) + "t";
  Register(name, rounds, [=] {
    struct Run : MatrixRun {
      using MatrixRun::MatrixRun;
      std::vector<std::vector<float>> wide;
    };
    auto run = std::make_shared<Run>(shapes, false, tokens);
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const WeightMatrix w = run->weights.Matrix(0, i);
      std::vector<float>& wide = run->wide.emplace_back();
      const auto* bits = static_cast<const std::uint16_t*>(w.data);
      for (std::int64_t j = 0; j < w.rows * w.cols; ++j) {
        wide.push_back(std::bit_cast<float>(std::uint32_t{bits[j]} << 16));
      }
    }
    ThreadPool& pool = Threads(threads);
    const auto sgemm = [=](std::int64_t) {
      openblas_set_num_threads(threads);
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const auto rows = static_cast<int>(shapes[i].first);
        const auto cols = static_cast<int>(shapes[i].second);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, tokens, rows, cols,
                    1.0f, run->x.data(), cols, run->wide[i].data(), cols, 0.0f,
                    run->out.data(), rows);
      }
      benchmark::DoNotOptimize(run->out.data());
    };
    return Work{.kernel =
                    [=, &pool](std::int64_t turn) {
                      run->Multiply(pool, PrimitivesFor(isa), turn);
                    },
                .limit = sgemm,
                .bytes = static_cast<double>(run->weights.bytes()) * tokens,
                .flops = static_cast<double>(run->weights.flops()) * tokens};
  });
}

// --- The sets
// -----------------------------------------------------------------

std::vector<Isa> RunnableIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : BuiltIsas()) {
    if (CpuHas(isa)) isas.push_back(isa);
  }
  return isas;
}

/// What a student asks first, in under two minutes.
void RegisterShortSet(int rounds) {
  const Isa best = BestIsa();
  for (const int n : {2048, 4096, 8192, 32768}) {
    for (const auto& [stage, id] : kStages) {
      RegisterAttention({stage, best, ShapeOf(stage, 128, 2, n, true)}, rounds);
    }
  }
  for (const Isa isa : RunnableIsas()) {
    if (isa == best) continue;
    for (const auto& [stage, id] : kStages) {
      RegisterAttention({stage, isa, ShapeOf(stage, 128, 2, 8192, true)},
                        rounds);
    }
  }
  for (const Stage stage : {Stage::kOnlineSoftmax, Stage::kQ8SinglePass}) {
    RegisterAttention({stage, best, ShapeOf(stage, 128, 2, 2048, false)},
                      rounds);
    RegisterAttention({stage, best, ShapeOf(stage, 128, 2, 8192, true), 2},
                      rounds);
  }
  for (const int threads : {1, 2}) {
    RegisterMatvec("qwen3_0.6b_layer", LayerMatrices(kQwen3), best, true,
                   threads, rounds);
  }
  RegisterMatvec("qwen3_0.6b_lm_head", OutputMatrix(kQwen3), best, true, 1,
                 rounds);
  RegisterMatvec("lab_model_layer", LayerMatrices(kLabModel), best, false, 1,
                 rounds);
  RegisterMatmul("qwen3_0.6b_layer", LayerMatrices(kQwen3), best, 256, 1,
                 std::min(rounds, 5));
  RegisterMatmul("lab_model_layer", LayerMatrices(kLabModel), best, 256, 1,
                 rounds);
}

/// Every head_dim, group, length, instruction set and thread count.
void RegisterFullSet(int rounds) {
  for (const int threads : {1, 2}) {
    for (const int d : {64, 128}) {
      for (const int group : {1, 2, 4}) {
        for (const int n : {512, 2048, 4096, 8192, 32768, 131072}) {
          for (const bool cold : {true, false}) {
            for (const auto& [stage, id] : kStages) {
              for (const Isa isa : RunnableIsas()) {
                RegisterAttention(
                    {stage, isa, ShapeOf(stage, d, group, n, cold), threads},
                    rounds);
              }
            }
          }
        }
      }
    }
    for (const Isa isa : RunnableIsas()) {
      for (const ModelShape& model : {kLabModel, kQwen3}) {
        for (const bool cold : {true, false}) {
          RegisterMatvec(model.name + "_layer", LayerMatrices(model), isa, cold,
                         threads, rounds);
        }
        RegisterMatvec(model.name + "_lm_head", OutputMatrix(model), isa, true,
                       threads, rounds);
        for (const int tokens : {32, 256}) {
          RegisterMatmul(model.name + "_layer", LayerMatrices(model), isa,
                         tokens, threads, rounds);
        }
      }
    }
  }
}

ProgramBody Setup(CLI::App& app) {
  struct Options {
    std::string set = "short";
    std::string filter = ".";
    bool list = false;
    int rounds = 15;
    std::string table;
    std::string json;
  };
  auto o = std::make_shared<Options>();
  app.add_option("--set", o->set,
                 "short (under two minutes) or full (every shape, instruction "
                 "set and thread count)")
      ->check(CLI::IsMember({"short", "full"}))
      ->capture_default_str();
  app.add_option("--filter", o->filter,
                 "Only benchmarks in whose name this regular expression is "
                 "found")
      ->transform(NotEmpty())
      ->type_name("REGEX");
  app.add_flag("--list", o->list,
               "Print the names of the benchmarks, and stop");
  app.add_option("--rounds", o->rounds,
                 "Times that each is measured; the median is shown")
      ->transform(WholeNumber(1, 1000))
      ->capture_default_str()
      ->type_name("N");
  app.add_option("--table", o->table, "Write the table to this file too")
      ->transform(OutputName())
      ->type_name("FILE");
  app.add_option("--json", o->json, "Write every number to this file")
      ->transform(OutputName())
      ->type_name("FILE");
  return [o] {
    const InterruptGuard interrupt_guard;
    try {
      const std::regex check(o->filter);
    } catch (const std::regex_error& error) {
      FailUsage("--filter: ", Printable(o->filter),
                " is no regular expression: ", error.what());
    }
    RequireDistinctFiles({{"--table", o->table}, {"--json", o->json}});
    std::unique_ptr<OutputFile> table, json;
    if (!o->table.empty()) table = std::make_unique<OutputFile>(o->table);
    if (!o->json.empty()) json = std::make_unique<OutputFile>(o->json);

    if (o->set == "short") {
      RegisterShortSet(o->rounds);
    } else {
      RegisterFullSet(o->rounds);
    }
    std::vector<std::string> words = {"lab_bench",
                                      "--benchmark_filter=" + o->filter};
    if (o->list) words.push_back("--benchmark_list_tests");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    auto count = static_cast<int>(arguments.size());
    benchmark::Initialize(&count, arguments.data());
    TableReporter reporter;
    if (benchmark::RunSpecifiedBenchmarks(&reporter) == 0) {
      FailUsage("--filter: no benchmark has a name like ", Printable(o->filter),
                "; --list shows them");
    }
    CheckInterrupted();
    FinishStdout();
    // Neither is put in place before both are written.
    if (table) table->Write(reporter.text());
    if (json) json->Write(reporter.json().dump(2) + "\n");
    if (table) table->Commit();
    if (json) json->Commit();
    return reporter.failed() ? kExitFailed : kExitDone;
  };
}

}  // namespace
}  // namespace kvlab::bench

int main(int argc, char** argv) {
  return kvlab::RunProgram(
      argc, argv, "lab_bench",
      "Measures the kernels beside the machine's own read bandwidth.",
      kvlab::bench::Setup);
}
