#include "exercises/16_own_selector/own_selector.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvlab {
// [yours]
namespace {

/// Places that are still to be given.
class Places {
 public:
  Places(int k, int blocks) : left_(k) {
    selection_.reasons.assign(static_cast<std::size_t>(blocks),
                              BlockReason::kLowerProbe);
  }

  /// Takes a block, if there is such a block and a place, and it has none.
  void Take(int block, BlockReason reason) {
    if (left_ == 0 || block < 0 || block >= std::ssize(selection_.reasons) ||
        IsTaken(selection_.reasons[block])) {
      return;
    }
    selection_.reasons[block] = reason;
    selection_.blocks.push_back(block);
    --left_;
  }

  Selection Ascending() && {
    std::ranges::sort(selection_.blocks);
    return std::move(selection_);
  }

 private:
  int left_;
  Selection selection_;
};

/// The newest block, the blocks with the largest probes, and the neighbours of
/// the first of these. No place is reserved.
class OwnSelector final : public BlockSelector {
 public:
  Selection Select(const SelectionInput& input) const override {
    const auto blocks = static_cast<int>(input.probes.size());
    std::vector<int> order(input.probes.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(
        order, [&](int a, int b) { return ComesBefore(input.probes, a, b); });
    Places places(input.k, blocks);
    // The question and the answer so far; but a single place is the probe's.
    if (input.k > 1) places.Take(blocks - 1, BlockReason::kRecency);
    // A sentence does not end with its block, and a probe that sees one key in
    // four may have met only the half of it that lies here.
    for (int i = 0; i < std::min(input.k / 4, blocks); ++i) {
      for (const int block : {order[i], order[i] + 1, order[i] - 1}) {
        places.Take(block, BlockReason::kProbe);
      }
    }
    for (const int block : order) places.Take(block, BlockReason::kProbe);
    return std::move(places).Ascending();
  }
};

}  // namespace
// [yours]

std::unique_ptr<BlockSelector> MakeOwnSelector() {
  return std::make_unique<OwnSelector>();
}

}  // namespace kvlab
