/// \file
/// A line of progress.
#pragma once

namespace kvlab {

/// "prefill 42 %" on stderr while the work goes on: on a terminal, nothing
/// elsewhere.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// `done`: 0 ... 1.
  void Show(double done);
  void Clear();

 private:
  bool enabled_;
  int shown_ = -1;
};

}  // namespace kvlab
