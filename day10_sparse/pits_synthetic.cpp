/// \file
/// The experiments on random numbers.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/engine/layers.h"
#include "common/lab/synthetic.h"
#include "day09_kv_q8/two_pass.h"
#include "day10_sparse/pit_subject.h"
#include "day10_sparse/scaling.h"

namespace kvlab {
namespace {

std::string Microseconds(double seconds) { return Fixed(seconds * 1e6, 0); }

ScalingPoint Measure(const PitSettings& settings, ScalingOptions options,
                     int tokens) {
  ThreadPool pool(settings.threads);
  options.rounds = settings.rounds;
  options.cold = settings.cold;
  return MeasureScaling(options, tokens, settings.primitives, pool,
                        settings.check);
}

/// One token of one KV head: sparse with k = 32 and exact, the same bits?
bool SameBits(const PitSettings& settings, int tokens) {
  const AttentionShape shape{.format = KvFormat::kQ8,
                             .head_dim = 128,
                             .heads = 2,
                             .kv_heads = 1,
                             .tokens = tokens};
  const KvRing ring(shape);
  const AttendInput input{.position = tokens - 1,
                          .group = 2,
                          .queries = ring.queries(),
                          .kv = ring.View(0, 0)};
  std::vector<float> sparse(256), exact(256);
  SparseTopK(settings.primitives, {}).Attend(input, sparse, nullptr);
  TwoPass(settings.primitives, false).Attend(input, exact, nullptr);
  return std::memcmp(sparse.data(), exact.data(), 4 * sparse.size()) == 0;
}

/// Remembers whether a block was chosen.
class WatchBlock final : public Observer {
 public:
  explicit WatchBlock(int block) : block_(block) {}
  void OnSelection(const HeadId& /*id*/, int /*block_tokens*/,
                   std::span<const BlockEvent> blocks) override {
    chosen_ = blocks[block_].taken;
  }
  bool chosen() const { return chosen_; }

 private:
  int block_;
  bool chosen_ = false;
};

}  // namespace

PitReport ShortContext(const PitSettings& settings) {
  PitReport report{
      .title = "A context of no more than k = 32 blocks (q8, 2 KV heads)",
      .columns = "rrlrrr",
      .rows = {{"tokens", "blocks", "bits of two_pass", "exact q8 us",
                "sparse us", "sparse / exact"}}};
  double least = 1e9, most = 0;
  bool same = true;
  for (const int n : {128, 256, 512, 1024}) {
    const ScalingPoint p = Measure(settings, {}, n);
    const bool equal = SameBits(settings, n);
    same = same && equal;
    least = std::min(least, 1 / p.gain);
    most = std::max(most, 1 / p.gain);
    report.rows.push_back({StrCat(n), StrCat(p.blocks), equal ? "yes" : "NO",
                           Microseconds(p.exact_q8), Microseconds(p.sparse),
                           Fixed(1 / p.gain, 2)});
  }
  report.sentence = StrCat(
      same ? "All blocks are chosen, so the result has the bits of exact "
             "attention"
           : "The results DIFFER from exact attention, which is a fault",
      "; probing and choosing buy nothing, each head reads by itself. The time "
      "was ",
      Fixed(least, 1), " to ", Fixed(most, 1),
      " times that of q8_single_pass. --dense-below 1025 would spare the "
      "choice.");
  return report;
}

PitReport HiddenToken(const PitSettings& settings) {
  constexpr int kBlocks = 64, kTokens = kBlocks * kTileTokens, kDim = 128;
  constexpr int kDraws = 16;  // queries, each with its needle in its own block
  PitReport report{
      .title =
          "A needle of one token, at every offset of a block (2,048 "
          "tokens, k = 2, no importance)",
      .columns = "rrlrr",
      .rows = {{"probed", "keys read",
                "offsets 0 ... 31: # all seen, + some, "
                ". none",
                "found", "expected"}}};
  std::vector<float> keys = Gaussian(std::int64_t{kTokens + kDraws} * kDim);
  const std::vector<float> values = keys;
  const std::vector<float> queries(keys.end() - kDraws * kDim, keys.end());
  const KvHeadView kv{.format = KvFormat::kF32,
                      .tokens = kTokens,
                      .head_dim = kDim,
                      .stride = kDim,
                      .keys = keys.data(),
                      .values = values.data()};
  double found_by_8 = 0;
  for (const int n_probe : {1, 4, 8, 16, 32}) {
    SparseTopK stage(
        settings.primitives,
        {.k = 2, .n_probe = n_probe, .importance = ImportanceUse::kOff});
    std::string marks;
    int found = 0;
    for (int offset = 0; offset < kTileTokens; ++offset) {
      settings.check();
      int here = 0;
      for (int draw = 0; draw < kDraws; ++draw) {
        const int block = 3 + 3 * draw;
        const std::span<const float> query =
            std::span(queries).subspan(std::size_t(draw) * kDim, kDim);
        float* key = &keys[(std::size_t(block) * kTileTokens + offset) * kDim];
        const std::vector<float> kept(key, key + kDim);
        double square = 0;
        for (const float x : query) square += double{x} * x;
        // Its score is 8 above ln(n): it takes nearly all of the weight.
        const auto factor = static_cast<float>(
            (std::log(double{kTokens}) + 8) * std::sqrt(double{kDim}) / square);
        for (int i = 0; i < kDim; ++i) key[i] = factor * query[i];
        WatchBlock watch(block);
        std::vector<float> out(kDim);
        stage.Attend({.position = kTokens - 1, .queries = query, .kv = kv}, out,
                     &watch);
        here += watch.chosen() ? 1 : 0;
        std::ranges::copy(kept, key);
      }
      marks += here == kDraws ? '#' : here == 0 ? '.' : '+';
      found += here;
    }
    const double share = double(found) / (kTileTokens * kDraws);
    const ProbeTokens probes = ProbesOf(0, kTokens, kTileTokens, n_probe);
    if (n_probe == 8) found_by_8 = share;
    report.rows.push_back({StrCat(n_probe),
                           PercentText(double(probes.count()) / kTileTokens),
                           marks, PercentText(share),
                           PercentText(double(probes.count()) / kTileTokens)});
  }
  report.sentence = StrCat(
      "The needle takes nearly all of exact attention, and with 8 probes it is "
      "found in ",
      PercentText(found_by_8),
      " of the places: at one offset in four its own key is probed, elsewhere "
      "nothing tells its block from others. Only to probe every key would "
      "find all, and that is the score work of exact attention.");
  return report;
}

PitReport ProbeShare(const PitSettings& settings) {
  PitReport report{
      .title =
          "Where sparse attention spends its time (k = 32, q8, 2 KV "
          "heads, one token)",
      .columns = "rrrrrrr",
      .rows = {{"tokens", "sparse us", "probe", "choose", "attend",
                "probed keys", "of bytes read"}}};
  double first = 0, last = 0;
  int done = 0;
  constexpr int kLengths[] = {2048, 8192, 32768, 131072};
  for (const int n : kLengths) {
    settings.progress(double(done++) / std::size(kLengths));
    const ScalingPoint p = Measure(settings, {}, n);
    const double all = p.probe + p.select + p.attend;
    last = p.probe / all;
    if (n == kLengths[0]) first = last;
    report.rows.push_back(
        {WithCommas(n), Microseconds(p.sparse), PercentText(p.probe / all),
         PercentText(p.select / all), PercentText(p.attend / all),
         HumanBytes(p.probe_bytes),
         PercentText(double(p.probe_bytes) /
                     double(p.probe_bytes + p.chosen_bytes))});
  }
  report.sentence = StrCat(
      "The chosen blocks cost the same however long the context is; probing "
      "reads a quarter of all keys, and grows with it: from ",
      PercentText(first), " to ", PercentText(last),
      " of the time. Sparse attention is still linear in the context, with a "
      "smaller factor: at most 8 times faster.");
  return report;
}

PitReport TotalTime(const PitSettings& settings) {
  const ModelShape shape{"Qwen3-0.6B", 1024, 16, 8, 128, 3072, 151936};
  constexpr int kLayers = 28;
  ThreadPool pool(settings.threads);
  // The linear layers of one token, from memory, the median of the rounds.
  const auto weights = [&](const WeightRing::Shapes& shapes) {
    const WeightRing ring(shapes, settings.cold);
    return MedianSeconds(settings.rounds, [&](std::int64_t turn) {
      settings.check();
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const std::vector<float> x(static_cast<std::size_t>(shapes[i].second),
                                   0.5f);
        std::vector<float> out(static_cast<std::size_t>(shapes[i].first));
        Matmul(pool, settings.primitives, x, 1, ring.Matrix(turn, i),
               out.data());
      }
    });
  };
  const double linear =
      kLayers * weights(LayerMatrices(shape)) + weights(OutputMatrix(shape));

  PitReport report{
      .title = StrCat("One decode step of the shape of ", shape.name,
                      " (28 layers, random weights in bf16, q8 KV, k = 32, ",
                      settings.threads,
                      settings.threads == 1 ? " thread)" : " threads)"),
      .columns = "rrrrrrr",
      .rows = {{"tokens", "weights ms", "exact ms", "sparse ms",
                "attention falls by", "share of the step", "step falls by"}}};
  double attention = 0, step = 0;
  for (const int n : {2048, 4096, 32768}) {
    const ScalingPoint p = Measure(
        settings, {.heads = shape.heads, .kv_heads = shape.kv_heads}, n);
    const double exact = kLayers * p.exact_q8;
    const double sparse = exact / p.gain;
    const double fall = 1 - 1 / p.gain;
    const double total_fall = (exact - sparse) / (linear + exact);
    if (n == 4096) attention = fall, step = total_fall;
    report.rows.push_back(
        {WithCommas(n), Fixed(linear * 1e3, 1), Fixed(exact * 1e3, 1),
         Fixed(sparse * 1e3, 1), PercentText(fall),
         PercentText(exact / (linear + exact)), PercentText(total_fall)});
  }
  report.sentence = StrCat(
      "At 4,096 tokens attention falls by ", PercentText(attention),
      ", the whole step by ", PercentText(step),
      ": most of a step goes into reading the weights, which no choice of "
      "blocks touches. The gain comes where the cache is as large as the "
      "weights.");
  return report;
}

}  // namespace kvlab
