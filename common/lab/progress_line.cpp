#include "common/lab/progress_line.h"

#include <unistd.h>

#include <cmath>
#include <iostream>
#include <utility>

namespace kvlab {

ProgressLine::ProgressLine(std::string what, bool time_left)
    : what_(std::move(what)),
      time_left_(time_left),
      enabled_(isatty(STDERR_FILENO) != 0) {}

void ProgressLine::Show(double done) {
  if (!enabled_) return;
  const auto now = std::chrono::steady_clock::now();
  if (begun_at_ < 0) {
    begun_at_ = done;
    begun_ = now;
  }
  const int percent = static_cast<int>(done * 100);
  if (percent == shown_) return;
  shown_ = percent;
  std::cerr << '\r' << what_ << ' ' << percent << " %";
  if (time_left_ && done > begun_at_) {
    const std::chrono::duration<double> taken = now - begun_;
    std::cerr << ", about "
              << RoughDuration(taken.count() * (1 - done) / (done - begun_at_))
              << " left";
  }
  std::cerr << "\x1b[K" << std::flush;
}

void ProgressLine::Clear() {
  if (shown_ >= 0) std::cerr << "\r\x1b[K" << std::flush;
  shown_ = -1;
}

std::string RoughDuration(double seconds) {
  const auto text = [](double value, const char* unit) {
    return std::to_string(static_cast<long>(std::ceil(value))) + unit;
  };
  if (!(seconds < 3.6e8)) return "years";
  if (seconds <= 90) return text(seconds, " s");
  if (seconds <= 90 * 60) return text(seconds / 60, " min");
  return text(seconds / 3600, " h");
}

}  // namespace kvlab
