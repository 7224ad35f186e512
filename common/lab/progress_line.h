/// \file
/// A line of progress.
#pragma once

#include <chrono>
#include <string>

namespace kvlab {

/// "prefill 42 %" on stderr while the work goes on: on a terminal, nothing
/// elsewhere.
class ProgressLine {
 public:
  /// `what` is done. With `time_left` the line says how much longer it will
  /// take if it goes on as since the first Show.
  explicit ProgressLine(std::string what = "prefill", bool time_left = false);
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// `done`: 0 ... 1.
  void Show(double done);
  void Clear();

 private:
  std::string what_;
  bool time_left_;
  bool enabled_;
  int shown_ = -1;  // percent
  double begun_at_ = -1;
  std::chrono::steady_clock::time_point begun_;
};

/// Seconds as a person says them: "40 s", "12 min", "3 h".
std::string RoughDuration(double seconds);

}  // namespace kvlab
