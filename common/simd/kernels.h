/// \file
/// Every block primitive, written once over a vector of 16 floats.
///
/// `V` is such a vector: scalar.cpp makes it from an array, avx2.cpp from two
/// registers, and so on. V offers
///
///     V::Zero()  V::Set(x)  V::Load(p)  V::LoadPartial(p, n)  v.Store(p)
///     V::LoadBf16(p)  V::LoadF16(p)            16 elements, widened to f32
///     V::LoadInt8(p)                           the same from integers
///     v.StoreInt8(p)                           whole numbers within +-127
///     a + b  a * b  a / b                      IEEE, lane by lane
///     V::Fma(a, b, c)                          a * b + c with one rounding
///     V::Max(a, b)  V::Min(a, b)               a > b ? a : b, a < b ? a : b
///     V::Abs(a)
///     V::Exp(x)                                the steps of Exp(float)
///     v.Sum()                                  lanes i and i+8, then +4, +2,
///                                              +1
///     V::DotRows<groups>(q, rows, count, spacing, sums)
///         lane r of sums[j]: group j of q times group j of row r, the exact
///         integer as f32. Of lanes beyond `count`, up to the next multiple of
///         4 may read row count - 1 again, the rest are 0.
///
/// and V::Part, the lanes of one register, with Part::kLanes, Zero, Load, Fma
/// and Store; and the sizes that suit its registers:
///
///     kMatmulRows, kMatmulTokens    Parts of a block of matmul; 4 or 2 rows
///     kMatvecRows                   rows that one vector meets at a time
///     kValueRows, kColumns          rows and columns of a pass over the values
///     kPrefetchBytes                how far ahead to ask for rows; 0: not
///
/// The defined order of a reduction over n elements: lane i takes elements i,
/// i + 16, ... in ascending order, a last block of fewer than 16 is filled up
/// with zeros, and Sum() adds the lanes as a tree. It is the same on every
/// instruction set because it is this code.
///
/// A file that includes this header is compiled for one instruction set. Its V
/// is in an anonymous namespace, so these templates are instantiated for that
/// file alone; and they call no inline function of the standard library, of
/// which the linker would keep one copy for all files, perhaps with
/// instructions that this CPU lacks.
#pragma once

#include "common/base/deterministic_math.h"
#include "common/simd/primitives.h"

namespace kvlab {

template <typename V>
struct Kernels {
  /// Loads 16 weights of any type as f32.
  template <WeightType type>
  static V LoadWeights(const void* row, std::int64_t i) {
    if constexpr (type == WeightType::kF32) {
      return V::Load(static_cast<const float*>(row) + i);
    } else if constexpr (type == WeightType::kBF16) {
      return V::LoadBf16(static_cast<const std::uint16_t*>(row) + i);
    } else {
      return V::LoadF16(static_cast<const std::uint16_t*>(row) + i);
    }
  }

  /// Loads the last n < 16 weights of a row, zeros after them.
  template <WeightType type>
  static V LoadWeightsPartial(const void* row, std::int64_t i, int n) {
    if constexpr (type == WeightType::kF32) {
      return V::LoadPartial(static_cast<const float*>(row) + i, n);
    } else {
      std::uint16_t block[kLanes] = {};
      const auto* p = static_cast<const std::uint16_t*>(row) + i;
      for (int j = 0; j < n; ++j) block[j] = p[j];
      return LoadWeights<type>(block, 0);
    }
  }

  static float Dot(const float* a, const float* b, std::int64_t n) {
    V sum = V::Zero();
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      sum = V::Fma(V::Load(a + i), V::Load(b + i), sum);
    }
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      sum =
          V::Fma(V::LoadPartial(a + i, rest), V::LoadPartial(b + i, rest), sum);
    }
    return sum.Sum();
  }

  /// A small matrix product: blocks of keys times blocks of queries. Four rows
  /// of keys at a time, so that they are read one after another.
  static void DotKeys(const TileScores* heads, int count, const KvRows& keys,
                      float scale) {
    constexpr int kRows = 4;
    const int stride = keys.stride;
    const std::int64_t spacing = std::int64_t{keys.step} * stride;
    int t = 0;
    for (; t + kRows <= keys.tokens; t += kRows) {
      const float* rows = keys.data + t * spacing;
      PrefetchRows(rows, After(keys.next, t, stride), kRows, keys.step, stride);
      int h = 0;
      for (; h + V::kMatmulTokens <= count; h += V::kMatmulTokens) {
        DotManyHeads(heads + h, rows, spacing, t, stride);
      }
      for (; h + 2 <= count; h += 2) {
        DotBlock<2, 2>(heads + h, rows, spacing, t, stride);
        DotBlock<2, 2>(heads + h, rows + 2 * spacing, spacing, t + 2, stride);
      }
      if (h < count) DotBlock<kRows, 1>(heads + h, rows, spacing, t, stride);
    }
    for (; t < keys.tokens; ++t) {
      for (int h = 0; h < count; ++h) {
        heads[h].scores[t] =
            Dot(heads[h].query, keys.data + t * spacing, stride);
      }
    }
    for (int h = 0; h < count; ++h) Scale(heads[h].scores, keys.tokens, scale);
  }

  /// Scores `first` and following of kRows rows for kHeads heads, not yet
  /// scaled.
  template <int kRows, int kHeads>
  static void DotBlock(const TileScores* heads, const float* rows,
                       std::int64_t spacing, int first, int stride) {
    V sum[kRows][kHeads];
    for (int i = 0; i < kRows; ++i) {
      for (int h = 0; h < kHeads; ++h) sum[i][h] = V::Zero();
    }
    for (int k = 0; k < stride; k += kLanes) {
      V key[kRows];
      for (int i = 0; i < kRows; ++i) key[i] = V::Load(rows + i * spacing + k);
      for (int h = 0; h < kHeads; ++h) {
        const V q = V::Load(heads[h].query + k);
        for (int i = 0; i < kRows; ++i) {
          sum[i][h] = V::Fma(q, key[i], sum[i][h]);
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int h = 0; h < kHeads; ++h) {
        heads[h].scores[first + i] = sum[i][h].Sum();
      }
    }
  }

  /// The same for 4 rows and kMatmulTokens heads, as in prefill.
  static void DotManyHeads(const TileScores* heads, const float* rows,
                           std::int64_t spacing, int first, int stride) {
    constexpr int kRows = V::kMatmulRows;
    constexpr int kHeads = V::kMatmulTokens;
    const float* queries[kHeads];
    for (int h = 0; h < kHeads; ++h) queries[h] = heads[h].query;
    alignas(64) float sums[kRows][kHeads][kLanes];
    for (int r = 0; r < 4; r += kRows) {
      SumBlock<kRows, kHeads>(rows + r * spacing, spacing, queries, stride,
                              true, &sums[0][0][0], kHeads * kLanes);
      for (int i = 0; i < kRows; ++i) {
        for (int h = 0; h < kHeads; ++h) {
          heads[h].scores[first + r + i] = V::Load(sums[i][h]).Sum();
        }
      }
    }
  }

  static V LoadValues(const float* p) { return V::Load(p); }
  static V LoadValues(const std::int8_t* p) { return V::LoadInt8(p); }

  /// Adds `count` rows to kVectors * 16 elements of kHeads accumulators, which
  /// stay in registers meanwhile; each loaded vector serves all heads.
  template <int kHeads, int kVectors, typename T>
  static void AddColumns(const float* const* weights, const T* rows, int count,
                         int stride, float* const* acc, int column) {
    V a[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h) {
      for (int j = 0; j < kVectors; ++j) {
        a[h][j] = V::Load(acc[h] + column + j * kLanes);
      }
    }
    for (int t = 0; t < count; ++t) {
      const T* row = rows + std::int64_t{t} * stride + column;
      for (int j = 0; j < kVectors; ++j) {
        const V v = LoadValues(row + j * kLanes);
        for (int h = 0; h < kHeads; ++h) {
          a[h][j] = V::Fma(V::Set(weights[h][t]), v, a[h][j]);
        }
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int j = 0; j < kVectors; ++j) {
        a[h][j].Store(acc[h] + column + j * kLanes);
      }
    }
  }

  /// kHeads heads take their sums from a tile, V::kValueRows rows at a time:
  /// few enough for the hardware to see that they are read one after another.
  /// `first`: nobody has asked for the next rows yet.
  template <int kHeads, typename T>
  static void AddTile(const TileSum* heads, const T* values, const T* next,
                      int tokens, int stride, bool first) {
    const float* weights[kHeads];
    float* acc[kHeads];
    for (int h = 0; h < kHeads; ++h) {
      weights[h] = heads[h].weights;
      acc[h] = heads[h].acc;
    }
    for (int t = 0; t < tokens; t += V::kValueRows) {
      const int count = tokens - t < V::kValueRows ? tokens - t : V::kValueRows;
      const T* rows = values + std::int64_t{t} * stride;
      if (first) PrefetchRows(rows, After(next, t, stride), count, 1, stride);
      int i = 0;
      for (; i + V::kColumns <= stride; i += V::kColumns) {
        constexpr int kVectors = V::kColumns / kLanes;
        if (count == V::kValueRows) {  // a constant: the loop is unrolled
          AddColumns<kHeads, kVectors>(weights, rows, V::kValueRows, stride,
                                       acc, i);
        } else {
          AddColumns<kHeads, kVectors>(weights, rows, count, stride, acc, i);
        }
      }
      for (; i < stride; i += kLanes) {
        AddColumns<kHeads, 1>(weights, rows, count, stride, acc, i);
      }
      for (int h = 0; h < kHeads; ++h) weights[h] += count;
    }
  }

  static void AccumulateValues(const TileSum* heads, int count,
                               const KvRows& values) {
    int h = 0;
    for (; h + 2 <= count; h += 2) {
      AddTile<2>(heads + h, values.data, values.next, values.tokens,
                 values.stride, h == 0);
    }
    if (h < count) {
      AddTile<1>(heads + h, values.data, values.next, values.tokens,
                 values.stride, h == 0);
    }
  }

  static void AccumulateValuesQ8(const TileSum* heads, int count,
                                 const KvRowsQ8& values) {
    if (values.next != nullptr) PrefetchScales(values.next_scales);
    for (int h = 0; h < count; h += 2) {
      const int some = count - h < 2 ? 1 : 2;
      float weights[2][kTileTokens];
      TileSum scaled[2];
      for (int i = 0; i < some; ++i) {
        for (int t = 0; t < values.tokens; ++t) {
          weights[i][t] = heads[h + i].weights[t] * values.scales[t];
        }
        scaled[i] = {weights[i], heads[h + i].acc};
      }
      if (some == 2) {
        AddTile<2>(scaled, values.codes, values.next, values.tokens,
                   values.stride, h == 0);
      } else {
        AddTile<1>(scaled, values.codes, values.next, values.tokens,
                   values.stride, h == 0);
      }
    }
  }

  /// Row t of `next`, if there is one.
  template <typename T>
  static const T* After(const T* next, int t, int stride) {
    return next == nullptr ? nullptr : next + std::int64_t{t} * stride;
  }

  /// Asks for `next`, as many rows as there are here; if it is null, for what
  /// comes kPrefetchBytes after these rows: the next rows of the stream. Decode
  /// attention waits for memory, and computes too long between two reads for
  /// the hardware to run ahead far enough by itself; and it cannot know which
  /// block is wanted next. Of every step-th row, the next `count` are asked
  /// for. An address beyond the cache's end does no harm.
  ///
  /// Always inlined: to gcc 12 a call of a function that only prefetches has no
  /// effect, and it leaves the call out.
  template <typename T>
  [[gnu::always_inline]] static void PrefetchRows(const T* rows, const T* next,
                                                  int count, int step,
                                                  int stride) {
    const int row_bytes = stride * static_cast<int>(sizeof(T));
    if (next != nullptr) {
      const auto* bytes = reinterpret_cast<const char*>(next);
      for (int i = 0; i < count * row_bytes; i += 64) {
        __builtin_prefetch(bytes + i);
      }
      return;
    }
    if constexpr (V::kPrefetchBytes > 0) {
      const auto* bytes = reinterpret_cast<const char*>(rows);
      if (step == 1) {
        bytes += V::kPrefetchBytes;
        for (int i = 0; i < count * row_bytes; i += 64) {
          __builtin_prefetch(bytes + i);
        }
        return;
      }
      const std::int64_t spacing = std::int64_t{step} * row_bytes;
      for (int r = count; r < 2 * count; ++r) {
        for (int i = 0; i < row_bytes; i += 64) {
          __builtin_prefetch(bytes + r * spacing + i);
        }
      }
    }
  }

  /// Asks for the scales of a tile.
  [[gnu::always_inline]] static void PrefetchScales(const float* scales) {
    for (int i = 0; i < kTileTokens; i += 16) __builtin_prefetch(scales + i);
  }

  static float Quantise(const float* x, int n, std::int8_t* codes) {
    V largest = V::Zero();
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      largest = V::Max(V::Abs(V::Load(x + i)), largest);
    }
    if (i < n) largest = V::Max(V::Abs(V::LoadPartial(x + i, n - i)), largest);
    float lanes[kLanes];
    largest.Store(lanes);
    const float scale = Max(lanes, kLanes) / 127.0f;
    if (scale == 0) {
      for (i = 0; i < n; ++i) codes[i] = 0;
      return 0;
    }
    const V s = V::Set(scale);
    for (i = 0; i + kLanes <= n; i += kLanes) {
      Codes(V::Load(x + i) / s).StoreInt8(codes + i);
    }
    if (i < n) {
      std::int8_t rest[kLanes];
      Codes(V::LoadPartial(x + i, n - i) / s).StoreInt8(rest);
      for (int j = 0; j < n - i; ++j) codes[i + j] = rest[j];
    }
    return scale;
  }

  /// Rounds to nearest, ties to even, and clamps to +-127. Only the quotient
  /// by a subnormal scale is ever beyond, and never beyond 255.
  static V Codes(V quotient) {
    const V round = V::Set(exp_constants::kRound);
    const V rounded = (quotient + round) + V::Set(-exp_constants::kRound);
    return V::Min(V::Max(rounded, V::Set(-127.0f)), V::Set(127.0f));
  }

  /// 16 tokens at a time, in every step.
  static void DotKeysQ8(const TileScoresQ8* heads, int count,
                        const KvRowsQ8& keys, float scale) {
    const int spacing = keys.step * keys.stride;
    if (keys.next != nullptr) PrefetchScales(keys.next_scales);
    for (int t = 0; t < keys.tokens; t += kLanes) {
      const int present = keys.tokens - t < kLanes ? keys.tokens - t : kLanes;
      const std::int8_t* rows = keys.codes + std::int64_t{t} * spacing;
      PrefetchRows(rows, After(keys.next, t, keys.stride), present, keys.step,
                   keys.stride);
      const V scales = LoadScales(keys, t, present);
      if (present == kLanes) {  // a constant: no test for absent rows is left
        for (int h = 0; h < count; ++h) {
          const V f =
              DotRowsQ8(heads[h].query, rows, kLanes, spacing, keys.stride);
          ((f * scales) * V::Set(scale)).Store(heads[h].scores + t);
        }
      } else {
        for (int h = 0; h < count; ++h) {
          const V f =
              DotRowsQ8(heads[h].query, rows, present, spacing, keys.stride);
          float block[kLanes];
          ((f * scales) * V::Set(scale)).Store(block);
          for (int r = 0; r < present; ++r) heads[h].scores[t + r] = block[r];
        }
      }
    }
  }

  /// The scales of rows t to t + count - 1, zeros after them.
  static V LoadScales(const KvRowsQ8& keys, int t, int count) {
    if (keys.step == 1) {
      return count == kLanes ? V::Load(keys.scales + t)
                             : V::LoadPartial(keys.scales + t, count);
    }
    float scales[kLanes] = {};
    for (int r = 0; r < count; ++r) {
      scales[r] = keys.scales[std::int64_t{t + r} * keys.step];
    }
    return V::Load(scales);
  }

  /// Lane r: the dot of the query with row r, without the row's scale.
  [[gnu::always_inline]] static V DotRowsQ8(const Q8Query& query,
                                            const std::int8_t* rows, int count,
                                            int spacing, int stride) {
    constexpr int kGroups = 4;  // groups of each row at a time: 128 codes
    const int groups = stride / kQ8Group;
    V f = V::Zero();
    int g = 0;
    for (; g + kGroups <= groups; g += kGroups) {
      V sums[kGroups];
      V::template DotRows<kGroups>(query.codes + g * kQ8Group,
                                   rows + g * kQ8Group, count, spacing, sums);
      for (int j = 0; j < kGroups; ++j) {
        f = V::Fma(sums[j], V::Set(query.scales[g + j]), f);
      }
    }
    for (; g < groups; ++g) {
      V sum[1];
      V::template DotRows<1>(query.codes + g * kQ8Group, rows + g * kQ8Group,
                             count, spacing, sum);
      f = V::Fma(sum[0], V::Set(query.scales[g]), f);
    }
    return f;
  }

  static float Max(const float* x, int n) {
    float max = x[0];
    int i = 0;
    if (n >= kLanes) {
      V m = V::Load(x);
      for (i = kLanes; i + kLanes <= n; i += kLanes) {
        m = V::Max(m, V::Load(x + i));
      }
      float lanes[kLanes];
      m.Store(lanes);
      for (int j = 0; j < kLanes; ++j) max = lanes[j] > max ? lanes[j] : max;
    }
    for (; i < n; ++i) max = x[i] > max ? x[i] : max;
    return max;
  }

  static float ExpAndSum(float* x, int n, float max) {
    V sum = V::Zero();
    const V minus_max = V::Set(-max);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      const V e = V::Exp(V::Load(x + i) + minus_max);
      e.Store(x + i);
      sum = sum + e;
    }
    if (i < n) {
      float rest[kLanes];
      V::Exp(V::LoadPartial(x + i, n - i) + minus_max).Store(rest);
      for (int j = 0; j < n - i; ++j) x[i + j] = rest[j];
      sum = sum + V::LoadPartial(x + i, n - i);
    }
    return sum.Sum();
  }

  static void Scale(float* x, int n, float factor) {
    const V f = V::Set(factor);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) (V::Load(x + i) * f).Store(x + i);
    for (; i < n; ++i) x[i] = x[i] * factor;
  }

  /// One vector times many rows: memory is what it waits for. kRows rows at a
  /// time hide the latency of fma, and ask for the rows that follow.
  template <WeightType type, int kRows>
  static void MatvecRows(const float* x, const void* const* w,
                         std::int64_t cols, std::int64_t row_bytes,
                         float* out) {
    V sum[kRows];
    for (int r = 0; r < kRows; ++r) sum[r] = V::Zero();
    // The next rows at the same column, unless they are too far for the L1.
    const std::int64_t ahead =
        kRows * row_bytes <= 24 * 1024 ? kRows * row_bytes : V::kPrefetchBytes;
    std::int64_t i = 0;
    for (; i + kLanes <= cols; i += kLanes) {
      const V xi = V::Load(x + i);
      for (int r = 0; r < kRows; ++r) {
        if (V::kPrefetchBytes > 0) {
          __builtin_prefetch(static_cast<const char*>(w[r]) +
                             i * (row_bytes / cols) + ahead);
        }
        sum[r] = V::Fma(LoadWeights<type>(w[r], i), xi, sum[r]);
      }
    }
    if (i < cols) {
      const int rest = static_cast<int>(cols - i);
      const V xi = V::LoadPartial(x + i, rest);
      for (int r = 0; r < kRows; ++r) {
        sum[r] = V::Fma(LoadWeightsPartial<type>(w[r], i, rest), xi, sum[r]);
      }
    }
    for (int r = 0; r < kRows; ++r) out[r] = sum[r].Sum();
  }

  template <WeightType type>
  static void Matvec(const float* x, const WeightMatrix& w,
                     std::int64_t first_row, std::int64_t last_row,
                     float* out) {
    constexpr int kRows = V::kMatvecRows;
    const std::int64_t row_bytes = w.cols * WeightBytes(type);
    const auto* base = static_cast<const unsigned char*>(w.data);
    const void* rows[kRows];
    std::int64_t r = first_row;
    for (; r + kRows <= last_row; r += kRows) {
      for (int j = 0; j < kRows; ++j) rows[j] = base + (r + j) * row_bytes;
      MatvecRows<type, kRows>(x, rows, w.cols, row_bytes, out + r);
    }
    for (; r < last_row; ++r) {
      rows[0] = base + r * row_bytes;
      MatvecRows<type, 1>(x, rows, w.cols, row_bytes, out + r);
    }
  }

  // Many vectors times many rows: a panel of rows, widened to f32 once, stays
  // in the L1 cache while a block of tokens passes by.
  static constexpr int kPanelRows = 8;
  static constexpr int kPanelDepth = 512;  // columns
  static constexpr int kTokenBlock = 48;   // a multiple of any kMatmulTokens
  struct Panel {
    alignas(64) float rows[kPanelRows][kPanelDepth];
    /// The last columns of each token, where they are fewer than 16.
    alignas(64) float tails[kTokenBlock][kLanes];
    /// Lanes of the running sums.
    alignas(64) float sums[kPanelRows][kTokenBlock][kLanes];
  };

  /// kRows x kTokens sums over `depth` more columns, a multiple of 16: one part
  /// of the lanes after the other, so that there are registers for more sums.
  /// sums: [kRows][sums_stride / 16][16]; x[j] is the token of sums[.][j].
  template <int kRows, int kTokens>
  static void SumBlock(const float* rows, std::int64_t stride,
                       const float* const* x, int depth, bool fresh,
                       float* sums, int sums_stride) {
    using Part = typename V::Part;
    for (int lane = 0; lane < kLanes; lane += Part::kLanes) {
      Part sum[kRows][kTokens];
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kTokens; ++j) {
          sum[i][j] =
              fresh ? Part::Zero()
                    : Part::Load(sums + i * sums_stride + j * kLanes + lane);
        }
      }
      for (int k = lane; k < depth; k += kLanes) {
        Part xs[kTokens];
        for (int j = 0; j < kTokens; ++j) xs[j] = Part::Load(x[j] + k);
        for (int i = 0; i < kRows; ++i) {
          const Part row = Part::Load(rows + i * stride + k);
          for (int j = 0; j < kTokens; ++j) {
            sum[i][j] = Part::Fma(row, xs[j], sum[i][j]);
          }
        }
      }
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kTokens; ++j) {
          sum[i][j].Store(sums + i * sums_stride + j * kLanes + lane);
        }
      }
    }
  }

  /// All rows of a panel times tokens t to t + kTokens - 1.
  template <int kTokens>
  static void MatmulPanel(Panel& panel, const TokenRows& x, int t,
                          std::int64_t column, int depth, int rows) {
    const float* xs[kTokens];
    const float* tails[kTokens];
    for (int j = 0; j < kTokens; ++j) {
      xs[j] = x.data + (t + j) * x.stride + column;
      tails[j] = panel.tails[t + j];
    }
    constexpr int kSumsStride = kTokenBlock * kLanes;
    const int whole = depth / kLanes * kLanes;
    for (int r = 0; r < rows; r += V::kMatmulRows) {
      SumBlock<V::kMatmulRows, kTokens>(panel.rows[r], kPanelDepth, xs, whole,
                                        column == 0, panel.sums[r][t],
                                        kSumsStride);
      if (whole < depth) {
        SumBlock<V::kMatmulRows, kTokens>(panel.rows[r] + whole, kPanelDepth,
                                          tails, kLanes, false,
                                          panel.sums[r][t], kSumsStride);
      }
    }
  }

  /// Up to kTokenBlock tokens.
  template <WeightType type>
  static void MatmulPanels(const TokenRows& x, const WeightMatrix& w,
                           std::int64_t first_row, std::int64_t last_row,
                           float* out, std::int64_t out_stride) {
    Panel panel;
    const std::int64_t whole = w.cols / kLanes * kLanes;
    if (whole < w.cols) {
      for (int t = 0; t < x.tokens; ++t) {
        V::LoadPartial(x.data + t * x.stride + whole,
                       static_cast<int>(w.cols - whole))
            .Store(panel.tails[t]);
      }
    }
    const auto* base = static_cast<const unsigned char*>(w.data);
    for (std::int64_t row = first_row; row < last_row; row += kPanelRows) {
      const int rows = last_row - row < kPanelRows
                           ? static_cast<int>(last_row - row)
                           : kPanelRows;
      for (std::int64_t column = 0; column < w.cols; column += kPanelDepth) {
        const int depth = w.cols - column < kPanelDepth
                              ? static_cast<int>(w.cols - column)
                              : kPanelDepth;
        for (int r = 0; r < kPanelRows; ++r) {
          // Rows beyond the last are the last again; their sums are not used.
          const std::int64_t from = row + (r < rows ? r : rows - 1);
          const auto* weights =
              base + (from * w.cols + column) * WeightBytes(type);
          int k = 0;
          for (; k + kLanes <= depth; k += kLanes) {
            LoadWeights<type>(weights, k).Store(panel.rows[r] + k);
          }
          if (k < depth) {
            LoadWeightsPartial<type>(weights, k, depth - k)
                .Store(panel.rows[r] + k);
          }
        }
        int t = 0;
        for (; t + V::kMatmulTokens <= x.tokens; t += V::kMatmulTokens) {
          MatmulPanel<V::kMatmulTokens>(panel, x, t, column, depth, rows);
        }
        for (; t < x.tokens; ++t) {
          MatmulPanel<1>(panel, x, t, column, depth, rows);
        }
      }
      for (int t = 0; t < x.tokens; ++t) {
        for (int r = 0; r < rows; ++r) {
          out[t * out_stride + row + r] = V::Load(panel.sums[r][t]).Sum();
        }
      }
    }
  }

  static constexpr std::int64_t WeightBytes(WeightType type) {
    return type == WeightType::kF32 ? 4 : 2;
  }

  template <WeightType type>
  static void MatmulOfType(const TokenRows& x, const WeightMatrix& w,
                           std::int64_t first_row, std::int64_t last_row,
                           float* out, std::int64_t out_stride) {
    if (x.tokens == 1) {
      return Matvec<type>(x.data, w, first_row, last_row, out);
    }
    for (int t = 0; t < x.tokens; t += kTokenBlock) {
      TokenRows block = x;
      block.data += t * x.stride;
      block.tokens = x.tokens - t < kTokenBlock ? x.tokens - t : kTokenBlock;
      MatmulPanels<type>(block, w, first_row, last_row, out + t * out_stride,
                         out_stride);
    }
  }

  static void Matmul(const TokenRows& x, const WeightMatrix& w,
                     std::int64_t first_row, std::int64_t last_row, float* out,
                     std::int64_t out_stride) {
    switch (w.type) {
      case WeightType::kF32:
        return MatmulOfType<WeightType::kF32>(x, w, first_row, last_row, out,
                                              out_stride);
      case WeightType::kF16:
        return MatmulOfType<WeightType::kF16>(x, w, first_row, last_row, out,
                                              out_stride);
      case WeightType::kBF16:
        return MatmulOfType<WeightType::kBF16>(x, w, first_row, last_row, out,
                                               out_stride);
    }
  }

  static V SiluMulBlock(V gate, V up) {
    const V one = V::Set(1.0f);
    const V e = V::Exp(gate * V::Set(-1.0f));
    return gate / (one + e) * up;
  }

  static void SiluMul(const float* gate, const float* up, std::int64_t n,
                      float* out) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      SiluMulBlock(V::Load(gate + i), V::Load(up + i)).Store(out + i);
    }
    if (i < n) {
      const int rest = static_cast<int>(n - i);
      float block[kLanes];
      SiluMulBlock(V::LoadPartial(gate + i, rest), V::LoadPartial(up + i, rest))
          .Store(block);
      for (int j = 0; j < rest; ++j) out[i + j] = block[j];
    }
  }

  static constexpr Primitives Table(Isa isa) {
    return {.isa = isa,
            .dot_keys = DotKeys,
            .accumulate_values = AccumulateValues,
            .quantise = Quantise,
            .dot_keys_q8 = DotKeysQ8,
            .accumulate_values_q8 = AccumulateValuesQ8,
            .max = Max,
            .exp_and_sum = ExpAndSum,
            .scale = Scale,
            .dot = Dot,
            .matmul = Matmul,
            .silu_mul = SiluMul};
  }
};

}  // namespace kvlab
