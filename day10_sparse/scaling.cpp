#include "day10_sparse/scaling.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "common/base/error.h"
#include "common/base/quantile.h"
#include "common/lab/synthetic.h"
#include "day09_kv_q8/online_softmax.h"
#include "day09_kv_q8/q8_single_pass.h"

namespace kvlab {
namespace {

using Clock = std::chrono::steady_clock;

/// One stage over a ring of caches.
class Runner {
 public:
  Runner(AttentionStage& stage, const AttentionShape& shape, ThreadPool& pool,
         const std::function<void()>& check)
      : stage_(stage), ring_(shape, check), pool_(pool) {
    out_.resize(static_cast<std::size_t>(shape.heads) * shape.head_dim);
  }

  /// The attention of one token, all heads.
  void Attend(std::span<const double> importance, Observer* observer) {
    const AttentionShape& shape = ring_.shape();
    const int group = shape.heads / shape.kv_heads;
    pool_.ParallelFor(
        shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
          for (auto head = static_cast<int>(begin); head < end; ++head) {
            const AttendInput input{.first_head = head * group,
                                    .position = shape.tokens - 1,
                                    .group = group,
                                    .queries = ring_.queries().subspan(
                                        static_cast<std::size_t>(head) * group *
                                        QueryStride(shape.head_dim)),
                                    .kv = ring_.View(turn_, head),
                                    .importance = importance};
            const auto row = static_cast<std::size_t>(group) * shape.head_dim;
            stage_.Attend(input, std::span(out_).subspan(head * row, row),
                          observer);
          }
        });
    ++turn_;
  }

  /// Seconds a token, of as many tokens as make 16 MB of cache.
  double Time(std::span<const double> importance) {
    const auto begin = Clock::now();
    const std::int64_t count = turns();
    for (std::int64_t i = 0; i < count; ++i) Attend(importance, nullptr);
    return std::chrono::duration<double>(Clock::now() - begin).count() /
           static_cast<double>(count);
  }

  std::int64_t turns() const {
    return std::max<std::int64_t>(1, 16'000'000 / ring_.bytes());
  }
  std::int64_t bytes() const { return ring_.bytes(); }

 private:
  AttentionStage& stage_;
  KvRing ring_;
  ThreadPool& pool_;
  std::vector<float> out_;
  std::int64_t turn_ = 0;
};

/// Counts the blocks that any head of a group chose: they are read once.
class CountBlocks final : public Observer {
 public:
  explicit CountBlocks(int group) : group_(group) {}
  void OnSelection(const HeadId& id, int /*block_tokens*/,
                   std::span<const BlockEvent> blocks) override {
    const auto kv_head = static_cast<std::size_t>(id.head / group_);
    if (taken_.size() <= kv_head) taken_.resize(kv_head + 1);
    taken_[kv_head].resize(blocks.size());
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      taken_[kv_head][b] = taken_[kv_head][b] || blocks[b].taken;
    }
  }
  /// Tokens in the chosen blocks, over all KV heads.
  std::int64_t Tokens(int block_tokens, int tokens) const {
    std::int64_t count = 0;
    for (const std::vector<bool>& head : taken_) {
      for (std::size_t b = 0; b < head.size(); ++b) {
        const int first = static_cast<int>(b) * block_tokens;
        if (head[b]) count += std::min(block_tokens, tokens - first);
      }
    }
    return count;
  }

 private:
  int group_;
  std::vector<std::vector<bool>> taken_;  // [KV heads][blocks]
};

/// Probed keys of one KV head.
std::int64_t ProbedTokens(const SparseOptions& sparse, int tokens) {
  std::int64_t count = 0;
  for (int b = 0; b < BlockCount(tokens, sparse.block_tokens); ++b) {
    count += ProbesOf(b, tokens, sparse.block_tokens, sparse.n_probe).count();
  }
  return count;
}

}  // namespace

double MedianSeconds(int rounds,
                     const std::function<void(std::int64_t turn)>& body) {
  std::vector<double> seconds;
  for (int turn = 0; turn <= rounds; ++turn) {
    const auto begin = Clock::now();
    body(turn);
    const double one =
        std::chrono::duration<double>(Clock::now() - begin).count();
    if (turn > 0) seconds.push_back(one);
  }
  return Quantile(seconds, 0.5);
}

ScalingPoint MeasureScaling(const ScalingOptions& options, int tokens,
                            const Primitives& primitives, ThreadPool& pool,
                            const std::function<void()>& check) {
  OnlineSoftmaxStage online(primitives, kTileTokens);
  Q8SinglePass q8(primitives, kTileTokens);
  SparseTopK sparse(primitives, options.sparse);

  AttentionShape shape{.format = KvFormat::kF32,
                       .head_dim = options.head_dim,
                       .heads = options.heads,
                       .kv_heads = options.kv_heads,
                       .tokens = tokens,
                       .cold = options.cold};
  Runner f32_run(online, shape, pool, check);
  shape.format = KvFormat::kQ8;
  Runner q8_run(q8, shape, pool, check);
  if (options.pack_probes) shape.packed_step = sparse.packed_step();
  Runner sparse_run(sparse, shape, pool, check);

  // The prompt's importance, as random as the keys.
  std::mt19937_64 random(11);
  std::vector<double> importance(static_cast<std::size_t>(tokens));
  for (double& x : importance) x = static_cast<double>(random() >> 40);

  ScalingPoint point{.tokens = tokens,
                     .blocks = BlockCount(tokens, options.sparse.block_tokens)};
  point.ran_exact =
      tokens < options.sparse.dense_below || options.sparse.k >= point.blocks;
  point.f32_bytes = f32_run.bytes();
  point.q8_bytes = q8_run.bytes();
  {
    ThreadPool alone(1);
    CountBlocks count(options.heads / options.kv_heads);
    SparseTopK stage(primitives, options.sparse);
    AttentionShape small = shape;
    small.cold = false;
    Runner(stage, small, alone, check).Attend(importance, &count);
    const std::int64_t row_bytes =
        q8_run.bytes() / tokens / options.kv_heads / 2;
    point.probe_bytes =
        ProbedTokens(options.sparse, tokens) * options.kv_heads * row_bytes;
    point.chosen_bytes =
        2 * count.Tokens(options.sparse.block_tokens, tokens) * row_bytes;
  }

  std::vector<double> f32_s, q8_s, sparse_s, gains, probe, select, attend;
  SparseTimes times;
  sparse.Time(&times);
  for (int round = -1; round < options.rounds; ++round) {
    check();
    const double a = f32_run.Time({});
    check();
    const double b = q8_run.Time({});
    check();
    times.TakeSelectShare();
    const double c = sparse_run.Time(importance);
    if (round < 0) continue;  // the first warms up
    f32_s.push_back(a);
    q8_s.push_back(b);
    sparse_s.push_back(c);
    gains.push_back(b / c);
    const double scale = 1e-9 / static_cast<double>(sparse_run.turns());
    probe.push_back(static_cast<double>(times.probe) * scale);
    select.push_back(static_cast<double>(times.select) * scale);
    attend.push_back(static_cast<double>(times.attend) * scale);
  }
  point.exact_f32 = Quantile(f32_s, 0.5);
  point.exact_q8 = Quantile(q8_s, 0.5);
  point.sparse = Quantile(sparse_s, 0.5);
  point.probe = Quantile(probe, 0.5);
  point.select = Quantile(select, 0.5);
  point.attend = Quantile(attend, 0.5);
  point.gain = Quantile(gains, 0.5);
  point.gain_low = Quantile(gains, 0.25);
  point.gain_high = Quantile(gains, 0.75);
  return point;
}

double Crossover(std::span<const ScalingPoint> points) {
  // The last length at which sparse attention does not gain.
  auto last = points.end();
  for (auto p = points.begin(); p != points.end(); ++p) {
    if (p->gain <= 1) last = p;
  }
  if (last == points.end()) return 0;
  const auto next = last + 1;
  if (next == points.end()) return -1;
  // log(gain) is taken as linear in log(tokens) between the two.
  const double from = std::log(last->gain);
  const double share = -from / (std::log(next->gain) - from);
  return std::exp(std::log(last->tokens) +
                  share * (std::log(next->tokens) - std::log(last->tokens)));
}

}  // namespace kvlab
