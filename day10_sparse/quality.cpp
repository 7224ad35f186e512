#include "day10_sparse/quality.h"

#include <algorithm>
#include <memory>

#include "common/engine/transformer.h"
#include "day09_kv_q8/q8_single_pass.h"
#include "day09_kv_q8/three_pass.h"

namespace kvlab {
namespace {

/// Tokens whose logits are held at a time, for each k: of a vocabulary of
/// 150,000, 20 MB.
constexpr int kChunk = 32;

/// One reader of the text: a transformer, a cache and a stage of its own.
struct Reader {
  Reader(const Model& model, const Primitives& primitives, ThreadPool& pool,
         KvFormat format, int capacity, std::unique_ptr<AttentionStage> how)
      : stage(std::move(how)),
        transformer(model.config, model.weights, primitives, pool),
        cache(Shape(transformer, format, capacity, *stage), primitives) {}

  static KvCacheShape Shape(const Transformer& transformer, KvFormat format,
                            int capacity, const AttentionStage& stage) {
    KvCacheShape shape = transformer.CacheShape(format, capacity);
    shape.packed_step = stage.packed_step();
    return shape;
  }

  const std::vector<float>& Read(std::span<const int> tokens) {
    transformer.Prefill(tokens, cache, *stage,
                        {.chunk = kChunk, .all_logits = &logits});
    return logits;
  }

  std::unique_ptr<AttentionStage> stage;
  Transformer transformer;
  KvCache cache;
  std::vector<float> logits;  // [tokens][vocab]
};

}  // namespace

std::vector<QualityRow> MeasureQuality(const Model& model,
                                       std::span<const int> tokens,
                                       const Primitives& primitives,
                                       const QualitySettings& settings) {
  const ModelConfig& c = model.config;
  const auto n = static_cast<int>(tokens.size());
  ThreadPool pool(settings.threads);
  // Any stage: exact prefill is the same for all.
  Reader exact(model, primitives, pool, settings.kv, n,
               std::make_unique<ThreePass>(primitives));
  std::vector<QualityRow> rows(settings.ks.size());
  std::vector<std::unique_ptr<Reader>> readers;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SparseOptions options = settings.sparse;
    options.k = rows[i].k = settings.ks[i];
    options.importance = ImportanceUse::kOff;
    options.sparse_prefill = true;
    rows[i].ran_exact = options.k >= BlockCount(n, options.block_tokens);
    rows[i].heads.resize(static_cast<std::size_t>(c.layers) * c.heads);
    readers.push_back(std::make_unique<Reader>(
        model, primitives, pool, settings.kv, n,
        std::make_unique<SparseTopK>(
            primitives, options,
            std::make_unique<QualityWatch>(std::make_unique<TopKSelector>(),
                                           rows[i].heads, c.heads))));
  }

  const auto vocab = static_cast<std::size_t>(c.vocab_size);
  for (int done = 0; done < n; done += kChunk) {
    if (settings.progress) settings.progress(static_cast<double>(done) / n);
    const auto some =
        tokens.subspan(static_cast<std::size_t>(done),
                       static_cast<std::size_t>(std::min(kChunk, n - done)));
    const std::vector<float>& expected = exact.Read(some);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::vector<float>& logits = readers[i]->Read(some);
      for (std::size_t t = 0; t < some.size(); ++t) {
        rows[i].logits.Add(std::span(expected).subspan(t * vocab, vocab),
                           std::span(logits).subspan(t * vocab, vocab));
      }
    }
  }
  return rows;
}

}  // namespace kvlab
