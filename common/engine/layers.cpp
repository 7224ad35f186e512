#include "common/engine/layers.h"

#include <algorithm>
#include <cmath>

#include "common/base/error.h"

namespace kvlab {
namespace {

// A thread is worth waking for about this many multiplications (~5 us).
constexpr std::int64_t kMultipliesPerRange = 1 << 16;

}  // namespace

void RmsNorm(const Primitives& primitives, std::span<const float> x,
             std::span<const float> gain, float eps, float* out) {
  const auto n = static_cast<std::int64_t>(x.size());
  KVLAB_CHECK_EQ(gain.size(), x.size());
  const float mean =
      primitives.dot(x.data(), x.data(), n) / static_cast<float>(n);
  if (!std::isfinite(mean)) {
    Fail("RMSNorm: the mean square of a row is ", mean,
         "; the weights of the model are damaged or overflow float32");
  }
  const float factor = 1.0f / std::sqrt(mean + eps);
  for (std::int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * gain[i];
}

void Matmul(ThreadPool& pool, const Primitives& primitives,
            std::span<const float> x, int tokens, const WeightMatrix& w,
            float* out) {
  KVLAB_CHECK_EQ(static_cast<std::int64_t>(x.size()), tokens * w.cols);
  const std::int64_t grain =
      std::max<std::int64_t>(1, kMultipliesPerRange / (w.cols * tokens));
  pool.ParallelFor(
      w.rows, grain, [&](std::int64_t first_row, std::int64_t last_row) {
        const TokenRows rows{.data = x.data(),
                             .tokens = tokens,
                             .cols = w.cols,
                             .stride = w.cols};
        primitives.matmul(rows, w, first_row, last_row, out, w.rows);
      });
}

}  // namespace kvlab
