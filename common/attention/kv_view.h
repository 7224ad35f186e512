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
/// Row after row without a gap, K and V apart, so that one head is read as two
/// streams: row t of the keys starts t * stride elements after the first. Rows
/// are padded with zeros from head_dim to stride (f32: a multiple of 16 floats;
/// q8: of 32 codes). Stages read runs of successive rows, up to a tile of 32.
struct KvHeadView {
  KvFormat format = KvFormat::kF32;
  int tokens = 0;    ///< n, at least 1
  int head_dim = 0;  ///< d
  int stride = 0;    ///< elements from row to row

  const float* keys = nullptr;    ///< kF32: [tokens][stride]
  const float* values = nullptr;  ///< kF32: [tokens][stride]

  const std::int8_t* key_codes = nullptr;    ///< kQ8: [tokens][stride]
  const std::int8_t* value_codes = nullptr;  ///< kQ8: [tokens][stride]
  const float* key_scales = nullptr;         ///< kQ8: [tokens]
  const float* value_scales = nullptr;       ///< kQ8: [tokens]

  /// The keys of tokens 0, packed_step, 2 * packed_step, ... once more, one
  /// after another, where the cache keeps them so (packed_step > 0): to probe
  /// them is to read one stream.
  int packed_step = 0;
  const float* packed_keys = nullptr;         ///< kF32
  const std::int8_t* packed_codes = nullptr;  ///< kQ8
  const float* packed_scales = nullptr;       ///< kQ8

  /// Rows of tokens t, t + step, ..., `count` <= 32 of them, as the primitives
  /// take them; from the packed ones where these have them.
  KvRows Keys(int t, int count, int step = 1) const {
    if (!IsPacked(t, step)) return {Key(t), count, stride, step};
    return {packed_keys + Row(t / packed_step), count, stride,
            step / packed_step};
  }
  KvRows Values(int t, int count) const { return {Value(t), count, stride}; }
  KvRowsQ8 KeysQ8(int t, int count, int step = 1) const {
    if (!IsPacked(t, step)) {
      return {KeyCodes(t), key_scales + t, count, stride, step};
    }
    return {packed_codes + Row(t / packed_step),
            packed_scales + t / packed_step, count, stride, step / packed_step};
  }
  KvRowsQ8 ValuesQ8(int t, int count) const {
    return {ValueCodes(t), value_scales + t, count, stride};
  }

  /// Row of token t.
  const float* Key(int t) const { return keys + Row(t); }
  const float* Value(int t) const { return values + Row(t); }
  const std::int8_t* KeyCodes(int t) const { return key_codes + Row(t); }
  const std::int8_t* ValueCodes(int t) const { return value_codes + Row(t); }

  /// Tokens of the tile that begins at token t: 32, or fewer in the last.
  int TileTokens(int t) const { return std::min(kTileTokens, tokens - t); }

  /// The same head as it was when it held only `n` <= tokens tokens: what a
  /// prefill query at position n - 1 may see.
  KvHeadView First(int n) const {
    KvHeadView view = *this;
    view.tokens = n;
    return view;
  }

 private:
  bool IsPacked(int t, int step) const {
    return packed_step > 0 && t % packed_step == 0 && step % packed_step == 0;
  }
  std::int64_t Row(int t) const { return std::int64_t{t} * stride; }
};

}  // namespace kvlab
