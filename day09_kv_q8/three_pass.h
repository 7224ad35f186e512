/// \file
/// Stage 1 (lesson 8-1): attention for one query in three passes.
///
///     pass 1   score[t] = (q . K[t]) / sqrt(d)
///     pass 2   M = max score, p[t] = exp(score[t] - M), l = sum of p
///     pass 3   out = (sum over t of p[t] V[t]) / l
///
/// | what                | shape, size                                     |
/// |---------------------|-------------------------------------------------|
/// | q                   | [d], one row per query head of the GQA group    |
/// | K, V                | [n][d] f32, shared by the group                 |
/// | materialised        | n scores per head, 4n bytes; the weights take   |
/// |                     | their place                                     |
/// | read per token      | K once, V once: 2 * 4 * d bytes for each of the |
/// |                     | n cached tokens and each KV head                |
///
/// This is the textbook form, and the exact result that every later stage is
/// compared with. It needs all of K before the first weight is known, and a
/// place for n scores: stage 2 needs neither.
///
/// Source: the softmax attention of Vaswani et al., "Attention Is All You
/// Need" (2017), section 3.2.1; numerics: common/simd/kernels.h.
#pragma once

#include "common/attention/attention_stage.h"

namespace kvlab {

/// The naive three-pass attention over an f32 KV cache.
class ThreePass final : public AttentionStage {
 public:
  using AttentionStage::AttentionStage;
  std::string_view id() const override { return "three_pass"; }

  /// See AttentionStage::Attend.
  void Attend(const AttendInput& input, std::span<float> out,
              Observer* observer) override;
};

}  // namespace kvlab
