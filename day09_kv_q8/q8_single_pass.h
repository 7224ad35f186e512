/// \file
/// Stage 3 (lesson 9-2): q8 keys and values in a single pass.
///
///     q8(x): s = max|x| / 127, code = x / s to the nearest, within +-127
///     quantise q once, in groups of 32: codes and one scale qs[j] a group
///     for each tile of T cached tokens:
///       dot[j]   = integer dot of group j of q with group j of K[t], exact
///       score[t] = (sum over j of dot[j] qs[j]) * s_K[t] / sqrt(d)
///       the running softmax of stage 2: M, S, rescale, weights w[t]
///       acc += sum of (w[t] s_V[t]) * codes of V[t]
///     out = acc / S
///
/// | what                | shape, size                                     |
/// |---------------------|-------------------------------------------------|
/// | q                   | [d] f32, quantised once for the whole scan      |
/// | K, V                | [n][d] int8 codes and [n] f32 scales            |
/// | state               | M, S and acc [d], per query head                |
/// | never materialised  | the scores, and K and V as floats               |
/// | read per token      | 2 * (d + 4) bytes for each of the n cached      |
/// |                     | tokens and each KV head: 264 at d = 128         |
///
/// Attention over f32 rows waits for memory; a quarter of the bytes is what is
/// gained, as far as the arithmetic keeps up. It differs from stage 2 in its
/// numbers, by the rounding of q, K and V to 8 bits (lesson 9-3 measures it),
/// and not in its recurrence.
///
/// Source: flash_attn_single_q_q8_neon of the article, lesson 9-2.
#pragma once

#include "common/attention/attention_stage.h"

namespace kvlab {

/// Online softmax over a q8 KV cache, each byte of K and V read once.
class Q8SinglePass final : public AttentionStage {
 public:
  /// `tile`: tokens at a time, 1 or 32.
  Q8SinglePass(const Primitives& primitives, int tile)
      : AttentionStage(primitives), tile_(tile) {}
  std::string_view id() const override { return "q8_single_pass"; }
  std::string_view not_materialised() const override {
    return "scores weights";
  }

  /// See AttentionStage::Attend.
  void Attend(const AttendInput& input, std::span<float> out,
              Observer* observer) override;

 private:
  int tile_;
};

}  // namespace kvlab
