#include "common/engine/importance.h"

#include "common/base/error.h"

namespace kvlab {

ImportanceRecord::ImportanceRecord(int layers, int heads, int capacity)
    : heads_(heads),
      capacity_(capacity),
      mass_(static_cast<std::size_t>(layers) * heads * capacity) {}

ImportanceSink ImportanceRecord::Sink(int layer, int first_head) {
  const std::size_t row = static_cast<std::size_t>(layer) * heads_ + first_head;
  return {.mass = mass_.data() + row * capacity_, .head_stride = capacity_};
}

std::span<const double> ImportanceRecord::Head(int layer, int head) const {
  const std::size_t row = static_cast<std::size_t>(layer) * heads_ + head;
  return {mass_.data() + row * capacity_, static_cast<std::size_t>(capacity_)};
}

std::vector<double> ImportanceRecord::Total(int tokens) const {
  KVLAB_CHECK_LE(tokens, capacity_);
  std::vector<double> total(static_cast<std::size_t>(tokens), 0.0);
  for (std::size_t row = 0; row < mass_.size(); row += capacity_) {
    for (int s = 0; s < tokens; ++s) total[s] += mass_[row + s];
  }
  return total;
}

}  // namespace kvlab
