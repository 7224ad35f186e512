/// \file
/// Stage 4 (lesson 10-2): attention over the k best blocks of the cache.
///
///     probe[b] = largest q . K[t] over every 4th token t of block b
///     choose at most k blocks: by importance, by probe, and the last
///     three-pass attention over the tokens of these blocks alone
///
/// | what                | shape, size                                     |
/// |---------------------|-------------------------------------------------|
/// | q                   | [d], one row per query head; each head chooses  |
/// |                     | for itself                                      |
/// | K, V                | f32 or q8, as in stages 1 and 3                 |
/// | materialised        | blocks probes; at most k * block scores         |
/// | never materialised  | n scores                                        |
/// | read per token      | a quarter of K to probe, then K and V of the    |
/// |                     | chosen blocks: with k = 32 blocks of 32 at most |
/// |                     | 1,024 tokens, however long the context is       |
///
/// The weights are a softmax over the chosen tokens: what was left out is not
/// approximated, it is as if it had never been said. If the cache has no more
/// than k blocks, all are chosen, and the result is that of `three_pass` (f32)
/// or `two_pass` (q8), bit for bit.
///
/// Source: the sparse branch of the article, lesson 10-2.
#pragma once

#include <memory>
#include <vector>

#include "common/attention/attention_stage.h"
#include "common/attention/tile_reader.h"
#include "day10_sparse/block_selection.h"
#include "day10_sparse/prompt_importance.h"
#include "day10_sparse/sparse_times.h"

namespace kvlab {

/// What stage 4 can be told.
struct SparseOptions {
  int k = 32;             ///< blocks to attend over, >= 1
  int block_tokens = 32;  ///< 16, 32 or 64
  int n_probe = 8;        ///< keys to probe in a full block
  ImportanceUse importance = ImportanceUse::kRaw;
  bool sparse_prefill = false;  ///< choose for every prompt query too
  int dense_below = 0;          ///< contexts shorter than this: all blocks
};

/// Attention over selected blocks.
class SparseTopK final : public AttentionStage {
 public:
  /// Chooses as the article does, or by `selector`.
  SparseTopK(const Primitives& primitives, const SparseOptions& options,
             std::unique_ptr<BlockSelector> selector =
                 std::make_unique<TopKSelector>())
      : AttentionStage(primitives),
        options_(options),
        selector_(std::move(selector)),
        importance_(options.importance, options.block_tokens) {}
  std::string_view id() const override { return "sparse_topk"; }
  std::string_view not_materialised() const override {
    return "scores weights";
  }

  bool uses_importance() const override {
    return options_.importance != ImportanceUse::kOff;
  }

  /// The distance of the probed keys, where it is the same in every block.
  int packed_step() const override;

  /// From now on adds its times to `times`, which must outlive it; null: no
  /// longer.
  void Time(SparseTimes* times) { times_ = times; }

  void BeginPrompt() override { importance_.Clear(); }

  /// See AttentionStage::Attend. The importance is that of the prompt: the same
  /// in every call until BeginPrompt.
  void Attend(const AttendInput& input, std::span<float> out,
              Observer* observer) override;

  /// Exact unless sparse_prefill is set. Then every prompt query chooses, by
  /// probe and recency alone, among the blocks it may see, and `importance`
  /// records what it really looked at.
  void Prefill(const PrefillInput& input, ImportanceSink* importance,
               const PrefillOutput& output) override;

 private:
  /// The query heads of one position that share a KV head.
  struct Group {
    HeadId first;  ///< of queries[0]; the others follow
    KvHeadView kv;
    std::vector<const float*> queries = {};
    std::vector<double> importance = {};  ///< [blocks], or none

    HeadId Id(int g) const {
      return {first.layer, first.head + g, first.position};
    }
  };

  /// Each head chooses its blocks and attends over them; out [heads][head_dim].
  /// `observer` and `sink` may be null.
  void AttendGroup(const Group& group, Observer* observer, ImportanceSink* sink,
                   float* out) const;
  /// Head `head` over `blocks`; out [head_dim]. Returns the weights of the
  /// blocks' tokens, not divided by `total`.
  std::vector<float> AttendOver(TileReader& reader, int head,
                                const Group& group, std::span<const int> blocks,
                                float* out, float* total) const;

  SparseOptions options_;
  std::unique_ptr<BlockSelector> selector_;
  SparseTimes* times_ = nullptr;
  PromptImportance importance_;
};

}  // namespace kvlab
