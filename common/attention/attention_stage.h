/// \file
/// The contract between the engine and the stages of the course.
///
/// The engine never knows which stage it runs; a stage never sees a file, a
/// flag or a token. For each layer and KV head the engine hands over the
/// queries that share this head (GQA) and a view of its keys and values, and
/// takes back one output row per query.
#pragma once

#include <span>
#include <string_view>

#include "common/attention/kv_view.h"
#include "common/attention/observer.h"
#include "common/simd/primitives.h"

namespace kvlab {

/// Query rows are padded with zeros from head_dim to a multiple of this, which
/// suits f32 rows (16) and q8 groups (32) alike.
inline constexpr int kQueryPadding = 32;

/// head_dim rounded up to kQueryPadding: floats from query row to query row.
constexpr int QueryStride(int head_dim) {
  return (head_dim + kQueryPadding - 1) / kQueryPadding * kQueryPadding;
}

/// One decode step of one GQA group: `group` queries at the same position,
/// all reading the same KV head.
struct AttendInput {
  int layer = 0;
  int first_head = 0;  ///< query head of queries row 0
  int position = 0;    ///< of the queries; the view holds position + 1 tokens
  int group = 1;       ///< query heads that share the KV head
  /// [group][QueryStride(head_dim)]: RoPE applied, not scaled.
  std::span<const float> queries = {};
  KvHeadView kv = {};
  /// Attention that each prompt token received in prefill, summed over heads
  /// and layers, [prompt tokens]; empty where none was recorded.
  std::span<const double> importance = {};

  /// Row `g` of the queries, padded.
  const float* Query(int g) const {
    return queries.data() + g * QueryStride(kv.head_dim);
  }
};

/// A chunk of the prompt for one GQA group: queries at `count` successive
/// positions; query i sees the first first_position + i + 1 tokens of kv.
struct PrefillInput {
  int layer = 0;
  int first_head = 0;
  int first_position = 0;
  int count = 0;
  int group = 1;
  /// Query of position first_position + i and head first_head + g:
  /// queries + i * position_stride + g * QueryStride(head_dim).
  const float* queries = nullptr;
  std::int64_t position_stride = 0;
  KvHeadView kv = {};  ///< holds first_position + count tokens

  const float* Query(int i, int g) const {
    return queries + i * position_stride + g * QueryStride(kv.head_dim);
  }
};

/// Where prefill writes: row of position i and head g of the group is
/// data + i * position_stride + g * head_dim.
struct PrefillOutput {
  float* data = nullptr;
  std::int64_t position_stride = 0;
};

/// Collects how much attention each token receives from the queries of one
/// group: mass[g * head_stride + s] += probability that head g gives token s,
/// queries in ascending order.
struct ImportanceSink {
  double* mass = nullptr;
  std::int64_t head_stride = 0;
};

/// One way to compute attention. Implementations keep no state between calls
/// but what BeginPrompt resets; Attend and Prefill run concurrently for
/// different KV heads.
class AttentionStage {
 public:
  explicit AttentionStage(const Primitives& primitives)
      : primitives_(primitives) {}
  virtual ~AttentionStage() = default;

  /// The stage's id: its file name, as in reports, dumps and JSON.
  virtual std::string_view id() const = 0;

  /// Tensors of a dump (common/lab/dump.h) that this stage never has in memory
  /// as a whole, separated by spaces: by design, not by omission.
  virtual std::string_view not_materialised() const { return ""; }

  /// True if Attend is to be given the importance of the prompt's tokens: it is
  /// then recorded during prefill.
  virtual bool uses_importance() const { return false; }

  /// > 0: the stage will often read every so-manieth key alone. A cache that
  /// keeps these packed (KvCacheShape::packed_step) makes it faster, no more.
  virtual int packed_step() const { return 0; }

  /// A new prompt: nothing of the last one may survive.
  virtual void BeginPrompt() {}

  /// Attention of a chunk of prompt queries, each over its own causal prefix.
  /// The default is exact, in the three-pass form over what the cache holds:
  /// bit-equal to `three_pass` (f32) or `two_pass` (q8) decoding each position.
  /// `importance` may be null. Throws Error on a
  /// non-finite query or overflowed scores.
  virtual void Prefill(const PrefillInput& input, ImportanceSink* importance,
                       const PrefillOutput& output);

  /// Attention of one decode step: out [group][head_dim]. `observer` is null in
  /// the fast path. Throws Error on a non-finite query or overflowed scores,
  /// naming layer, head and position; the same on every instruction set.
  virtual void Attend(const AttendInput& input, std::span<float> out,
                      Observer* observer) = 0;

 protected:
  const Primitives& primitives_;
};

/// 1 / sqrt(head_dim): what every score is multiplied with.
float AttentionScale(int head_dim);

/// Throws Error unless every element of the query row [head_dim] is finite.
void RequireFiniteQuery(const float* query, int head_dim, const HeadId& id);

/// Throws Error unless the sum of the softmax weights is finite and positive.
/// It is not when scores overflowed: no weight can be trusted then.
void RequireUsableTotal(float total, const HeadId& id);

}  // namespace kvlab
