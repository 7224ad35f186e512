/// \file
/// Stage 2 (lesson 8-2): online softmax, one pass over K and V.
///
///     for each tile of T cached tokens:
///       score[t] = (q . K[t]) / sqrt(d)
///       m = max of the tile's scores; in the first tile M = m, S = 0, acc = 0
///       if m > M:  c = exp(M - m);  S *= c;  acc *= c;  M = m    (rescale)
///       w[t] = exp(score[t] - M);  S += sum of w;  acc += sum of w[t] V[t]
///     out = acc / S
///
/// | what                | shape, size                                     |
/// |---------------------|-------------------------------------------------|
/// | q                   | [d], one row per query head of the GQA group    |
/// | K, V                | [n][d] f32, shared by the group                 |
/// | state               | M, S and acc [d], per query head                |
/// | never materialised  | the n scores: one tile of T at a time           |
/// | read per token      | K once, V once: 2 * 4 * d bytes for each of the |
/// |                     | n cached tokens and each KV head                |
///
/// T is 32: a rescale and a sum for every 32 tokens, which vectors like. T = 1
/// is the article's loop, token by token, through the same code; its sums are
/// rounded in another order, so the two differ by about 1e-6.
///
/// Unlike stage 1 it needs no place for scores, and K and V may arrive while it
/// runs. The bytes read are the same: stage 3 makes those fewer.
///
/// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax"
/// (2018); the state is common/attention/online_softmax.h.
#pragma once

#include "common/attention/attention_stage.h"

namespace kvlab {

/// Online softmax over an f32 KV cache.
class OnlineSoftmaxStage final : public AttentionStage {
 public:
  /// `tile`: tokens at a time, 1 or 32.
  OnlineSoftmaxStage(const Primitives& primitives, int tile)
      : AttentionStage(primitives), tile_(tile) {}
  std::string_view id() const override { return "online_softmax"; }
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
