#include "day10_sparse/needle_arms.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "common/base/error.h"

namespace kvlab {
namespace {

/// Takes the first `k` of `order`, an order of all blocks.
Selection TakeFirst(std::vector<int> order, int k, BlockReason reason) {
  Selection selection;
  selection.reasons.assign(order.size(), BlockReason::kLowerProbe);
  order.resize(std::min(order.size(), static_cast<std::size_t>(k)));
  for (const int block : order) selection.reasons[block] = reason;
  std::ranges::sort(order);
  selection.blocks = std::move(order);
  return selection;
}

std::vector<int> AllBlocks(const SelectionInput& input) {
  std::vector<int> blocks(input.probes.size());
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

template <typename T>
Selection TakeLargest(const SelectionInput& input, std::span<const T> values,
                      BlockReason reason) {
  KVLAB_CHECK_EQ(values.size(), input.probes.size());
  std::vector<int> order = AllBlocks(input);
  std::ranges::sort(order,
                    [&](int a, int b) { return ComesBefore(values, a, b); });
  return TakeFirst(std::move(order), input.k, reason);
}

class OracleSelector final : public BlockSelector {
 public:
  bool needs_masses() const override { return true; }
  Selection Select(const SelectionInput& input) const override {
    return TakeLargest(input, input.masses, BlockReason::kProbe);
  }
};

class ProbeSelector final : public BlockSelector {
 public:
  Selection Select(const SelectionInput& input) const override {
    return TakeLargest(input, input.probes, BlockReason::kProbe);
  }
};

class ImportanceSelector final : public BlockSelector {
 public:
  Selection Select(const SelectionInput& input) const override {
    return TakeLargest(input, input.importance, BlockReason::kImportance);
  }
};

class RecencySelector final : public BlockSelector {
 public:
  Selection Select(const SelectionInput& input) const override {
    std::vector<int> order = AllBlocks(input);
    std::ranges::reverse(order);
    return TakeFirst(std::move(order), input.k, BlockReason::kRecency);
  }
};

class RandomSelector final : public BlockSelector {
 public:
  explicit RandomSelector(std::uint64_t seed) : seed_(seed) {}
  Selection Select(const SelectionInput& input) const override {
    // std::shuffle differs between libraries; the generator does not.
    std::seed_seq seeds = {seed_ & 0xffffffff, seed_ >> 32,
                           static_cast<std::uint64_t>(input.id.layer),
                           static_cast<std::uint64_t>(input.id.head),
                           static_cast<std::uint64_t>(input.id.position)};
    std::mt19937_64 random(seeds);
    std::vector<int> order = AllBlocks(input);
    const std::size_t places =
        std::min(order.size(), static_cast<std::size_t>(input.k));
    for (std::size_t i = 0; i < places; ++i) {
      std::swap(order[i], order[i + random() % (order.size() - i)]);
    }
    return TakeFirst(std::move(order), input.k, BlockReason::kProbe);
  }

 private:
  std::uint64_t seed_;
};

}  // namespace

std::string_view BlockArmName(BlockArm arm) {
  switch (arm) {
    case BlockArm::kArticle:
      return "article";
    case BlockArm::kOracle:
      return "oracle";
    case BlockArm::kProbe:
      return "probe";
    case BlockArm::kImportance:
      return "importance";
    case BlockArm::kRecency:
      return "recency";
    case BlockArm::kRandom:
      return "random";
  }
  return "?";
}

std::unique_ptr<BlockSelector> MakeArm(BlockArm arm, std::uint64_t seed) {
  switch (arm) {
    case BlockArm::kArticle:
      break;
    case BlockArm::kOracle:
      return std::make_unique<OracleSelector>();
    case BlockArm::kProbe:
      return std::make_unique<ProbeSelector>();
    case BlockArm::kImportance:
      return std::make_unique<ImportanceSelector>();
    case BlockArm::kRecency:
      return std::make_unique<RecencySelector>();
    case BlockArm::kRandom:
      return std::make_unique<RandomSelector>(seed);
  }
  return std::make_unique<TopKSelector>();
}

}  // namespace kvlab
