/// \file
/// What a run of stage 4 chose, added up call by call: enough to say why a
/// needle was missed, and how much was read.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/attention/observer.h"
#include "common/lab/model_prompt.h"
#include "day10_sparse/block_selection.h"

namespace kvlab {

/// The blocks that hold the needle's sentence, ascending; none if its tokens
/// are not found in the prompt, or there is no needle.
std::vector<int> NeedleBlocks(const Model& model, const Prompt& prompt,
                              int block_tokens);

/// A choice is one call: a step, layer and query head.
struct ChoiceSummary {
  /// How one block fared over all choices; no memory grows with their number.
  struct Fate {
    std::int64_t taken = 0;
    std::int64_t evicted = 0;  ///< had a place, recency got it
    double importance = 0;     ///< of the last choice
    int importance_rank = 0;   ///< 0: none was recorded
    int best_probe_rank = 0;
    int worst_probe_rank = 0;
    std::pair<int, int> best_probe_head = {};  ///< (layer, head), the first

    void Add(const HeadId& id, const BlockEvent& event);
  };

  std::vector<int> needle = {};  ///< its blocks
  std::int64_t choices = 0;
  std::set<int> positions = {};
  std::set<std::pair<int, int>> heads = {};  ///< (layer, head)
  std::int64_t read = 0;      ///< choices that took a block of the needle
  std::int64_t read_all = 0;  ///< and all of its blocks
  std::set<std::pair<int, int>> readers = {};
  int blocks = 0;  ///< of the last choice
  std::map<int, Fate> needle_fates = {};
  /// Who took places, by reason and block; the last block, whichever it was at
  /// the time, is kLastBlock.
  std::map<std::pair<BlockReason, int>, Fate> takers = {};
  static constexpr int kLastBlock = -1;

  void Add(const HeadId& id, std::span<const BlockEvent> events);
};

/// Adds up the choices of a run, and the rows of keys and values it read.
class ChoiceRecorder final : public Observer {
 public:
  /// `group`: query heads that share a KV head.
  ChoiceRecorder(std::vector<int> needle_blocks, int n_probe, int group)
      : n_probe_(n_probe), group_(group) {
    summary_.needle = std::move(needle_blocks);
  }

  void OnSelection(const HeadId& id, int block_tokens,
                   std::span<const BlockEvent> blocks) override;

  const ChoiceSummary& summary() const { return summary_; }

  /// Rows of keys and of values, each counted once however many heads of a
  /// group read it: the probed keys, and all of the blocks that any of them
  /// chose. Over all steps, layers and KV heads.
  std::int64_t RowsRead();

 private:
  void CountRows();

  int n_probe_;
  int group_;
  ChoiceSummary summary_;
  // The group whose choices are coming in.
  HeadId first_ = {-1, -1, -1};
  int block_tokens_ = 0;
  std::vector<bool> chosen_;
  std::int64_t rows_ = 0;
};

}  // namespace kvlab
