/// \file
/// Caches and weights of random numbers, in the shapes of real models, to
/// measure with.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/parallel.h"
#include "common/base/weight_matrix.h"
#include "common/engine/kv_cache.h"

namespace kvlab {

/// `n` Gaussian numbers, for work whose speed alone matters.
std::vector<float> Gaussian(std::int64_t n);

/// Bytes of the largest cache of this CPU.
std::int64_t LastLevelCache();

/// How many sets of `bytes` bytes take turns so that each has left the CPU's
/// caches when its turn comes again (cold), or one (hot).
int RingSize(std::int64_t bytes, bool cold);

/// The shape of one attention problem: one token of one layer.
struct AttentionShape {
  KvFormat format = KvFormat::kF32;
  int head_dim = 0;
  int heads = 0;     ///< query heads
  int kv_heads = 0;  ///< heads of the cache
  int tokens = 0;    ///< n
  bool cold = false;
  int packed_step = 0;  ///< of the cache (KvCacheShape)

  bool operator==(const AttentionShape&) const = default;
};

/// A KV cache of Gaussian rows whose layers take turns. Cold: so many that a
/// layer has left the CPU's caches when its turn comes again, as in a decode
/// step, where the other layers and the weights come between. Hot: one layer.
class KvRing {
 public:
  /// `check` is called again and again while it is filled, and may throw.
  explicit KvRing(
      const AttentionShape& shape, const std::function<void()>& check = [] {});

  const AttentionShape& shape() const { return shape_; }
  /// The head as the `turn`th token finds it.
  KvHeadView View(std::int64_t turn, int kv_head) const;
  /// Turns until a layer comes again.
  int layers() const { return cache_.shape().layers; }
  /// What one token must read: K and V, codes and scales, in bytes.
  std::int64_t bytes() const { return cache_.used_bytes() / layers(); }
  /// Queries of one token: [heads][QueryStride(head_dim)].
  std::span<const float> queries() const { return queries_; }
  /// Reads the bytes of turn `turn`, heads shared out to the threads.
  void Read(ThreadPool& pool, std::int64_t turn) const;

 private:
  AttentionShape shape_;
  KvCache cache_;
  std::vector<float> queries_;
  mutable std::atomic<std::uint64_t> read_ = 0;  // so that Read must read
};

/// The linear layers of a model.
struct ModelShape {
  std::string name;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int feed_forward = 0;
  int vocabulary = 0;
};

/// Random bf16 weights of one or more matrices, in sets that take turns as the
/// layers of KvRing do.
class WeightRing {
 public:
  /// [rows, cols] of each matrix of a set.
  using Shapes = std::vector<std::pair<std::int64_t, std::int64_t>>;

  WeightRing(const Shapes& shapes, bool cold);

  /// Matrix `i` of the set whose turn it is.
  WeightMatrix Matrix(std::int64_t turn, std::size_t i) const;
  const Shapes& shapes() const { return shapes_; }
  int sets() const { return sets_; }
  std::int64_t bytes() const { return set_elements_ * 2; }  ///< of one set
  /// Multiplications and additions of one set for one token.
  std::int64_t flops() const { return set_elements_ * 2; }
  /// Reads the bytes of turn `turn`, shared out to the threads.
  void Read(ThreadPool& pool, std::int64_t turn) const;

 private:
  Shapes shapes_;
  int sets_ = 1;
  std::int64_t set_elements_ = 0;
  std::vector<std::uint16_t> elements_;
  mutable std::atomic<std::uint64_t> read_ = 0;  // so that Read must read
};

/// The matrices of one transformer layer, and of the output (lm_head).
WeightRing::Shapes LayerMatrices(const ModelShape& model);
WeightRing::Shapes OutputMatrix(const ModelShape& model);

}  // namespace kvlab
