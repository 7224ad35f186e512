/// \file
/// The contrast to stage 3 (article 9-2, section 3): q8 attention that must
/// know the largest score before it weights the first value.
///
///     stored:    scores of all tokens, kept   -> maximum -> weights, values
///     --rescan:  scores of all tokens, maximum only -> the scores once more,
///                weights, values
///
/// | what                | stored                | --rescan                  |
/// |---------------------|-----------------------|---------------------------|
/// | materialised        | n scores per head     | nothing of size n         |
/// | K codes and scales  | read once             | read twice                |
/// | V codes and scales  | read once             | read once                 |
/// | a token, d = 128    | 264 bytes read        | 396 bytes read            |
///
/// Both forms do the same arithmetic on the same numbers in the same order, so
/// they agree to the bit; so does prefill on a q8 cache. They differ from
/// `q8_single_pass` by the order of rounding only: about 1e-6.
///
/// Storing the scores does not read K or V twice: its price is the score array,
/// 4 n bytes for each query head, and that nothing comes out before all of K
/// has been seen. Only the form that stores nothing pays with memory traffic.
#pragma once

#include "common/attention/attention_stage.h"

namespace kvlab {

/// Attention over a q8 KV cache in two passes: over K for the scores and their
/// maximum, then for weights and values together.
class TwoPass final : public AttentionStage {
 public:
  /// `rescan`: compute the scores twice instead of storing them.
  TwoPass(const Primitives& primitives, bool rescan)
      : AttentionStage(primitives), rescan_(rescan) {}
  std::string_view id() const override { return "two_pass"; }
  std::string_view not_materialised() const override {
    return rescan_ ? "scores weights" : "";
  }

  /// See AttentionStage::Attend.
  void Attend(const AttendInput& input, std::span<float> out,
              Observer* observer) override;

 private:
  bool rescan_;
};

}  // namespace kvlab
