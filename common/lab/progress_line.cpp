#include "common/lab/progress_line.h"

#include <unistd.h>

#include <iostream>

namespace kvlab {

ProgressLine::ProgressLine() : enabled_(isatty(STDERR_FILENO) != 0) {}

void ProgressLine::Show(double done) {
  const int percent = static_cast<int>(done * 100);
  if (!enabled_ || percent == shown_) return;
  shown_ = percent;
  std::cerr << "\rprefill " << percent << " %" << std::flush;
}

void ProgressLine::Clear() {
  if (shown_ >= 0) std::cerr << "\r\x1b[K" << std::flush;
  shown_ = -1;
}

}  // namespace kvlab
