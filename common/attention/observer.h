/// \file
/// A seat beside the engine and its stages: for dumps, traces and counters.
#pragma once

#include <algorithm>
#include <ostream>
#include <span>
#include <string_view>

#include "common/attention/online_softmax.h"

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

/// What a running softmax did with one tile.
struct TileEvent {
  int first_token = 0;
  std::span<const float> scores = {};  ///< before they became weights
  OnlineStep step = {};
  float M = 0;  ///< after the tile
  float S = 0;
};

/// One block of the cache as a stage that selects saw it.
struct BlockEvent {
  float probe = 0;          ///< largest of the sampled dots, not scaled
  int probe_rank = 0;       ///< 1 is the largest probe of all blocks
  double importance = 0;    ///< sum over its tokens
  int importance_rank = 0;  ///< 0 if no importance was recorded
  bool taken = false;
  std::string_view reason = {};  ///< why it was taken or dropped
};

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

  /// A tile went through the running softmax of one query.
  virtual void OnTile(const HeadId& /*id*/, const TileEvent& /*event*/) {}

  /// A query chose among the blocks of the cache, [blocks] in ascending order.
  virtual void OnSelection(const HeadId& /*id*/, int /*block_tokens*/,
                           std::span<const BlockEvent> /*blocks*/) {}

  /// The attention output of all heads of a layer, [heads * head_dim].
  virtual void OnAttention(int /*layer*/, int /*position*/,
                           std::span<const float> /*out*/) {}

  /// The logits of the token after `position`, [vocab].
  virtual void OnLogits(int /*position*/, std::span<const float> /*logits*/) {}
};

/// Shows a tile to an observer, if there is one: construct it with the scores,
/// call Show when the tile is done.
class TileWatch {
 public:
  TileWatch(Observer* observer, const HeadId& id, int first_token,
            std::span<const float> scores)
      : observer_(observer) {
    if (observer_ == nullptr) return;
    std::ranges::copy(scores, scores_);
    id_ = id;
    event_ = {.first_token = first_token, .scores = {scores_, scores.size()}};
  }
  void Show(const OnlineStep& step, const OnlineSoftmax& softmax) {
    if (observer_ == nullptr) return;
    event_.step = step;
    event_.M = softmax.M;
    event_.S = softmax.S;
    observer_->OnTile(id_, event_);
  }

 private:
  Observer* observer_;
  HeadId id_;
  TileEvent event_;
  float scores_[kTileTokens];
};

}  // namespace kvlab
