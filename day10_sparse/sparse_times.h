/// \file
/// Where stage 4 spends its time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace kvlab {

/// Nanoseconds of each step, all heads and calls added up (two threads at once
/// count twice).
struct SparseTimes {
  std::atomic<std::int64_t> probe = 0;
  std::atomic<std::int64_t> select = 0;
  std::atomic<std::int64_t> attend = 0;

  /// The share (0 ... 1) of probing and selecting in all of it. Starts anew.
  double TakeSelectShare() {
    const std::int64_t choosing = probe.exchange(0) + select.exchange(0);
    const std::int64_t all = choosing + attend.exchange(0);
    return all == 0 ? 0
                    : static_cast<double>(choosing) / static_cast<double>(all);
  }
};

/// Measures one step after another, if there is somewhere to put it.
class Laps {
 public:
  explicit Laps(SparseTimes* times) : times_(times) {
    if (times_ != nullptr) begin_ = Clock::now();
  }
  void End(std::atomic<std::int64_t> SparseTimes::*step) {
    if (times_ == nullptr) return;
    const auto now = Clock::now();
    times_->*step += std::chrono::nanoseconds(now - begin_).count();
    begin_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  SparseTimes* times_;
  Clock::time_point begin_;
};

}  // namespace kvlab
