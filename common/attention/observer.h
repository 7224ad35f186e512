/// \file
/// A seat beside the engine and its stages: for dumps, traces and counters.
#pragma once

#include <ostream>
#include <span>

namespace kvlab {

/// Whose numbers an observer is shown.
struct HeadId {
  int layer = 0;
  int head = 0;  ///< query head
  int position = 0;
};

/// "layer 0, head 1, position 2": for error messages.
inline std::ostream& operator<<(std::ostream& out, const HeadId& id) {
  return out << "layer " << id.layer << ", head " << id.head << ", position "
             << id.position;
}

/// Sees what a stage computes while it computes it. Every function does
/// nothing unless overridden; spans are valid during the call only. Calls for
/// different KV heads of one layer may come from several threads, so a program
/// with an observer runs the attention on one.
class Observer {
 public:
  virtual ~Observer() = default;

  /// All scores of one query, [n], where a stage stores them.
  virtual void OnScores(const HeadId& /*id*/,
                        std::span<const float> /*scores*/) {}

  /// The weights exp(score - max), [n], before division by their total.
  virtual void OnWeights(const HeadId& /*id*/,
                         std::span<const float> /*weights*/, float /*max*/,
                         float /*total*/) {}

  /// The attention output of all heads of a layer, [heads * head_dim].
  virtual void OnAttention(int /*layer*/, int /*position*/,
                           std::span<const float> /*out*/) {}

  /// The logits of the token after `position`, [vocab].
  virtual void OnLogits(int /*position*/, std::span<const float> /*logits*/) {}
};

}  // namespace kvlab
