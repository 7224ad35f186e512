/// \file
/// The block primitives: the only code that differs between instruction sets.
///
/// A stage or the engine says *what* happens to a tile (32 tokens of one KV
/// head); a primitive does it with the vectors of this CPU. All implementations
/// of one primitive return the same bits: reductions run over 16 lanes in one
/// defined order whatever the width of a register (see kernels.h), everything
/// else is done element by element, a multiply-add always as one fma.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/weight_matrix.h"

namespace kvlab {

/// Tokens in a tile of the KV cache.
inline constexpr int kTileTokens = 32;

/// f32 rows are padded with zeros to a multiple of this.
inline constexpr int kLanes = 16;

/// Elements of a q8 query that share one scale; q8 rows are padded with zero
/// codes to a multiple of this.
inline constexpr int kQ8Group = 32;

/// Instruction sets; of one architecture's, the better ones come later.
enum class Isa { kScalar, kAvx2, kAvx512, kAvx512Vnni, kNeon, kNeonDotprod };

/// Where a block of tokens stands: `tokens` rows of `cols` floats each, the
/// rows `stride` floats apart.
struct TokenRows {
  const float* data;
  int tokens;
  std::int64_t cols;
  std::int64_t stride;
};

/// A query quantised in groups of 32: element i is codes[i] * scales[i / 32].
struct Q8Query {
  const std::int8_t* codes;  ///< [stride]
  const float* scales;       ///< [stride / 32]
};

/// A tile: up to 32 rows of keys or values of one KV head, each of `stride`
/// elements (padding included).
struct KvRows {
  const float* data;
  int tokens;
  int stride;    ///< a multiple of 16
  int step = 1;  ///< for keys: every step-th row of the cache from `data` on
  /// Rows that are read after these, to be asked for meanwhile; null: those
  /// that follow in the cache. It changes no result.
  const float* next = nullptr;
};
struct KvRowsQ8 {
  const std::int8_t* codes;
  const float* scales;
  int tokens;
  int stride;    ///< a multiple of 32
  int step = 1;  ///< of codes and scales alike
  const std::int8_t* next = nullptr;
  const float* next_scales = nullptr;  ///< theirs, if there is a `next`
};

/// What one query head gets from a tile of keys: a query [stride], padded with
/// zeros, and where its scores [tokens] go.
struct TileScores {
  const float* query;
  float* scores;
};
struct TileScoresQ8 {
  Q8Query query;
  float* scores;
};

/// What one query head gets from a tile of values: its weights [tokens], and
/// the sum [stride] that the weighted rows are added to.
struct TileSum {
  const float* weights;
  float* acc;
};

/// One table per instruction set. Pointers need no alignment. Floats in and
/// out are finite unless a line says otherwise.
///
/// The primitives of a tile (up to 32 rows of keys or values) serve `count`
/// query heads at once, those that share a KV head: each row comes from memory,
/// and is widened, once for all of them.
struct Primitives {
  Isa isa;

  /// scores[t] = (query . keys[t]) * scale for each row and head.
  void (*dot_keys)(const TileScores* heads, int count, const KvRows& keys,
                   float scale);

  /// acc[i] = fma(weights[t], values[t][i], acc[i]), t ascending, for each
  /// head. The step is 1.
  void (*accumulate_values)(const TileSum* heads, int count,
                            const KvRows& values);

  /// The q8 rule on one row or group: scale = max|x| / 127, code[i] = x[i] /
  /// scale rounded to nearest, ties to even, within +-127; all codes 0 if the
  /// scale is 0. Returns the scale. x [n], codes [n], n >= 1.
  float (*quantise)(const float* x, int n, std::int8_t* codes);

  /// q8 scores[t] = (f * scales[t]) * scale, f the dot of the query with the
  /// codes of row t: per group of 32 an exact integer, times the group's scale;
  /// the groups are added by fma in ascending order.
  void (*dot_keys_q8)(const TileScoresQ8* heads, int count,
                      const KvRowsQ8& keys, float scale);

  /// acc[i] = fma(weights[t] * scales[t], codes[t][i], acc[i]), t ascending,
  /// for each head. The step is 1.
  void (*accumulate_values_q8)(const TileSum* heads, int count,
                               const KvRowsQ8& values);

  /// Largest of x[0..n), n >= 1. If x holds a NaN, a NaN or a number may come
  /// out; exp_and_sum then gives a total that is refused.
  float (*max)(const float* x, int n);

  /// x[t] = exp(x[t] - max) for t < n <= 32, and the sum of the results in the
  /// tile order: 16 lanes over the tokens, absent ones 0.
  float (*exp_and_sum)(float* x, int n, float max);

  /// x[i] *= factor.
  void (*scale)(float* x, int n, float factor);

  /// sum of a[i] * b[i] over n, in the defined order.
  float (*dot)(const float* a, const float* b, std::int64_t n);

  /// out[t][r] = x[t] . w[r] for rows first_row <= r < last_row of w; element r
  /// of token t is written to out[t * out_stride + r]. Every output is one dot
  /// in the defined order, however many tokens come at once.
  void (*matmul)(const TokenRows& x, const WeightMatrix& w,
                 std::int64_t first_row, std::int64_t last_row, float* out,
                 std::int64_t out_stride);

  /// out[i] = gate[i] / (1 + exp(-gate[i])) * up[i].
  void (*silu_mul)(const float* gate, const float* up, std::int64_t n,
                   float* out);
};

/// Name as in --isa and in reports.
std::string_view IsaName(Isa isa);

/// All instruction sets that this program was built with.
std::span<const Isa> BuiltIsas();

/// Every instruction set that --isa knows, of whatever architecture.
std::span<const Isa> KnownIsas();

/// True if this program was built with `isa` and this CPU can run it.
bool CpuHas(Isa isa);

/// The best instruction set that this CPU can run.
Isa BestIsa();

/// `name` to Isa. Throws a usage Error on an unknown name, on an instruction
/// set of another architecture, and where this CPU cannot run it: a forced
/// instruction set never falls back to another.
Isa ParseIsa(std::string_view name);

/// The table of `isa`, which the CPU must have.
const Primitives& PrimitivesFor(Isa isa);

}  // namespace kvlab
