#include "day10_sparse/needle_trace.h"

#include <algorithm>

#include "common/base/error.h"

namespace kvlab {
namespace {

BlockReason ReasonOf(std::string_view name) {
  for (const BlockReason reason :
       {BlockReason::kImportance, BlockReason::kProbe, BlockReason::kRecency,
        BlockReason::kLowerProbe}) {
    if (name == ReasonName(reason)) return reason;
  }
  return BlockReason::kEvictedByRecency;
}

}  // namespace

std::vector<int> NeedleBlocks(const Model& model, const Prompt& prompt,
                              int block_tokens) {
  std::vector<int> blocks;
  if (!prompt.needle) return blocks;
  const auto range =
      FindTokens(model.tokenizer, prompt.tokens, prompt.needle->needle);
  if (!range) return blocks;
  for (int b = range->first / block_tokens; b <= range->last / block_tokens;
       ++b) {
    blocks.push_back(b);
  }
  return blocks;
}

void ChoiceSummary::Fate::Add(const HeadId& id, const BlockEvent& event) {
  taken += event.taken;
  evicted += event.reason == ReasonName(BlockReason::kEvictedByRecency);
  importance = event.importance;
  importance_rank = event.importance_rank;
  if (best_probe_rank == 0 || event.probe_rank < best_probe_rank) {
    best_probe_rank = event.probe_rank;
    best_probe_head = {id.layer, id.head};
  }
  worst_probe_rank = std::max(worst_probe_rank, event.probe_rank);
}

void ChoiceSummary::Add(const HeadId& id, std::span<const BlockEvent> events) {
  ++choices;
  positions.insert(id.position);
  heads.insert({id.layer, id.head});
  blocks = static_cast<int>(events.size());
  std::size_t taken = 0;
  for (const int block : needle) {
    needle_fates[block].Add(id, events[block]);
    taken += events[block].taken;
  }
  if (taken > 0) {
    ++read;
    readers.insert({id.layer, id.head});
  }
  if (taken > 0 && taken == needle.size()) ++read_all;
  for (int b = 0; b < blocks; ++b) {
    if (!events[b].taken) continue;
    takers[{ReasonOf(events[b].reason), b + 1 == blocks ? kLastBlock : b}].Add(
        id, events[b]);
  }
}

void ChoiceRecorder::OnSelection(const HeadId& id, int block_tokens,
                                 std::span<const BlockEvent> blocks) {
  summary_.Add(id, blocks);
  const int first_head = id.head - id.head % group_;
  if (id.position != first_.position || id.layer != first_.layer ||
      first_head != first_.head) {
    CountRows();
    first_ = {id.layer, first_head, id.position};
    block_tokens_ = block_tokens;
    chosen_.assign(blocks.size(), false);
  }
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].taken) chosen_[b] = true;
  }
}

void ChoiceRecorder::CountRows() {
  const int tokens = first_.position + 1;
  for (std::size_t b = 0; b < chosen_.size(); ++b) {
    const ProbeTokens probes =
        ProbesOf(static_cast<int>(b), tokens, block_tokens_, n_probe_);
    rows_ += chosen_[b] ? 2 * (probes.last - probes.first) : probes.count();
  }
  chosen_.clear();
}

std::int64_t ChoiceRecorder::RowsRead() {
  CountRows();
  first_ = {-1, -1, -1};
  return rows_;
}

}  // namespace kvlab
