/// \file
/// How good a choice of blocks was: the share of exact attention that it holds.
///
/// A query's weights add up to 1 over all tokens. `recall` is what of that lies
/// in the chosen blocks; `regret` is what as many of the heaviest blocks would
/// hold more. What is dropped decides the error of the output, whatever it is:
///
///     out - out_sparse = dropped * (mean of the dropped values - out_sparse)
///
/// with dropped = 1 - recall, and the mean weighted as exact attention weighs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "day10_sparse/block_selection.h"

namespace kvlab {

/// Many choices of one head, or of several.
class ChoiceQuality {
 public:
  void Add(double recall, double best) {
    ++queries_;
    recall_ += recall;
    regret_ += best - recall;
    worst_ = std::min(worst_, recall);
  }
  void Merge(const ChoiceQuality& other) {
    queries_ += other.queries_;
    recall_ += other.recall_;
    regret_ += other.regret_;
    worst_ = std::min(worst_, other.worst_);
  }

  std::int64_t queries() const { return queries_; }
  double mean_recall() const { return recall_ / Count(); }
  double mean_regret() const { return regret_ / Count(); }
  double least_recall() const { return worst_; }

 private:
  double Count() const { return static_cast<double>(queries_); }

  std::int64_t queries_ = 0;
  double recall_ = 0;
  double regret_ = 0;
  double worst_ = 1;
};

/// The share of the largest `count` masses.
double LargestMasses(std::span<const double> masses, int count);

/// Chooses as another selector does and notes how good it was, for each layer
/// and head. It makes the stage compute all scores: not for timed runs.
class QualityWatch final : public BlockSelector {
 public:
  /// `record`: [layers * heads], head `h` of layer `l` at l * heads + h; must
  /// outlive the selector.
  QualityWatch(std::unique_ptr<BlockSelector> selector,
               std::vector<ChoiceQuality>& record, int heads)
      : selector_(std::move(selector)), record_(record), heads_(heads) {}

  bool needs_masses() const override { return true; }
  Selection Select(const SelectionInput& input) const override;

 private:
  std::unique_ptr<BlockSelector> selector_;
  std::vector<ChoiceQuality>& record_;
  int heads_;
};

}  // namespace kvlab
