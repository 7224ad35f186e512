/// \file
/// The KV cache: keys and values of every cached token, layer and KV head.
///
/// Lesson 8-3. A decode step needs the keys and values of all earlier tokens;
/// they never change once computed, so they are kept. For each layer and KV
/// head the rows stand one after another in tiles of 32 tokens, K and V apart:
///
///     layer 0, KV head 0:  K [tile][32][stride]   V [tile][32][stride]
///     layer 0, KV head 1:  K ...                  V ...
///
/// so a head is read as two streams and token t is row t % 32 of tile t / 32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/attention/kv_view.h"

namespace kvlab {

/// The shape of a cache.
struct KvCacheShape {
  KvFormat format = KvFormat::kF32;
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int capacity = 0;  ///< most tokens it will ever hold

  /// Elements from row to row: head_dim padded as the format asks.
  int stride() const;
  /// Memory that a full cache takes, in bytes.
  std::int64_t bytes() const;
};

/// Grows as tokens come: memory is reserved for `capacity` tokens and taken
/// from the system when a row is first written.
class KvCache {
 public:
  /// Throws Error, before anything is allocated, if the full cache would not
  /// fit in the memory that is free now; the message tells both sizes.
  explicit KvCache(const KvCacheShape& shape);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvCacheShape& shape() const { return shape_; }

  /// Tokens held by every layer (between forward passes all hold the same).
  int tokens() const { return tokens_.back(); }

  /// Forgets all tokens: a new prompt.
  void Clear();

  /// Appends `count` tokens to a layer. k, v: [count][kv_heads][head_dim], RoPE
  /// applied to k. Throws Error naming layer, head and position if an element
  /// is not finite; then nothing of this call is kept.
  void Append(int layer, std::span<const float> k, std::span<const float> v,
              int count);

  /// One head of a layer with all its tokens.
  KvHeadView View(int layer, int kv_head) const;

  /// Bytes of keys and values (codes and scales for q8) of the cached tokens,
  /// padding not counted: what --json calls kv.bytes.
  std::int64_t used_bytes() const;

 private:
  float* Plane(int layer, int kv_head, bool values) const;

  KvCacheShape shape_;
  std::vector<int> tokens_;  // per layer
  std::byte* memory_ = nullptr;
};

}  // namespace kvlab
