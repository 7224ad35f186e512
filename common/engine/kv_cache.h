/// \file
/// The KV cache: keys and values of every cached token, layer and KV head.
///
/// Lesson 8-3. A decode step needs the keys and values of all earlier tokens;
/// they never change once computed, so they are kept. Each layer and KV head
/// has planes of its own, row after row, in blocks of 32 tokens:
///
///     f32:  K [block][32][stride] floats      V the same
///     q8:   K [block][32][stride] int8 codes  V the same
///           K scales [block][32] floats       V scales the same
///
/// so a head is read as streams and token t is row t % 32 of block t / 32.
///
/// Lesson 9-1. In q8 each row has one scale, max|x| / 127, and is quantised
/// once, when it is appended: 132 bytes a row at head_dim 128, not 512.
///
/// Lesson 10-2. With a packed_step of 4 every fourth key is kept a second time,
/// in planes that hold nothing else: to probe them is then to read one stream.
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
  /// > 0: keys 0, packed_step, ... are also kept packed (see KvHeadView).
  int packed_step = 0;

  /// Elements from row to row: head_dim padded as the format asks.
  int stride() const;
  /// Memory that a full cache takes, in bytes.
  std::int64_t bytes() const;
};

/// Grows as tokens come, with the same bytes however they come: memory is
/// reserved for `capacity` tokens and taken from the system when a row is first
/// written.
class KvCache {
 public:
  /// Throws Error, before anything is allocated, if the full cache would not
  /// fit in the memory that is free now; the message tells both sizes.
  KvCache(const KvCacheShape& shape, const Primitives& primitives);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const KvCacheShape& shape() const { return shape_; }

  /// Tokens held by every layer (between forward passes all hold the same).
  int tokens() const { return tokens_.back(); }

  /// Forgets all tokens: a new prompt.
  void Clear() { Truncate(0); }

  /// Forgets all tokens but the first `tokens` <= tokens().
  void Truncate(int tokens);

  /// Appends `count` tokens to a layer. k, v: [count][kv_heads][head_dim], RoPE
  /// applied to k. Throws Error naming layer, head and position if an element
  /// is not finite; then nothing of this call is kept.
  void Append(int layer, std::span<const float> k, std::span<const float> v,
              int count);

  /// One head of a layer with all its tokens.
  KvHeadView View(int layer, int kv_head) const;

  /// Bytes of keys and values (codes and scales for q8) of the cached tokens,
  /// padding and the packed copy not counted: what --json calls kv.bytes.
  std::int64_t used_bytes() const;

  /// Bytes of the packed copies of their keys.
  std::int64_t packed_bytes() const;

 private:
  /// Where the planes of one layer and KV head begin.
  struct Planes {
    std::byte* keys;
    std::byte* values;
    float* key_scales;  // q8 only
    float* value_scales;
    std::byte* packed_keys;  // only with a packed_step
    float* packed_scales;
  };
  Planes PlanesOf(int layer, int kv_head) const;
  void Store(std::span<const float> row, int token, std::byte* plane,
             float* scales) const;

  KvCacheShape shape_;
  const Primitives& primitives_;
  std::vector<int> tokens_;  // per layer
  std::byte* memory_ = nullptr;
};

}  // namespace kvlab
