/// \file
/// What a stage sees of the KV cache: the keys and values of one KV head.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/simd/primitives.h"

namespace kvlab {

/// How keys and values are stored.
enum class KvFormat {
  kF32,  ///< 4 bytes an element
  kQ8    ///< int8 codes and one f32 scale a row
};

/// The keys and values of the first `tokens` tokens of one (layer, KV head).
///
/// Tokens stand in tiles of 32, tile after tile without a gap, so that one head
/// is read as one stream: row t of the keys starts at keys + t * stride, and
/// token t lives in tile t / 32, row t % 32. Rows are padded with zeros from
/// head_dim to stride (f32: a multiple of 16 floats; q8: of 32 codes).
struct KvHeadView {
  KvFormat format = KvFormat::kF32;
  int tokens = 0;                 ///< n, at least 1
  int head_dim = 0;               ///< d
  int stride = 0;                 ///< elements from row to row
  const float* keys = nullptr;    ///< [tokens][stride], format kF32
  const float* values = nullptr;  ///< [tokens][stride], format kF32
  // The q8 planes (codes, and one scale a row) join with the q8 stages.

  /// Number of tiles, the last perhaps not full.
  int tiles() const { return (tokens + kTileTokens - 1) / kTileTokens; }

  /// Tokens in tile `tile`: 32, or fewer in the last.
  int TokensInTile(int tile) const {
    return std::min(kTileTokens, tokens - tile * kTileTokens);
  }

  /// First row of a tile.
  const float* KeyTile(int tile) const {
    return keys + std::int64_t{tile} * kTileTokens * stride;
  }
  const float* ValueTile(int tile) const {
    return values + std::int64_t{tile} * kTileTokens * stride;
  }

  /// The same head as it was when it held only `n` <= tokens tokens: what a
  /// prefill query at position n - 1 may see.
  KvHeadView First(int n) const {
    KvHeadView view = *this;
    view.tokens = n;
    return view;
  }
};

}  // namespace kvlab
