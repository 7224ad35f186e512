#include "common/attention/online_softmax.h"

#include <algorithm>
#include <limits>

#include "common/base/deterministic_math.h"

namespace kvlab {

OnlineStep OnlineSoftmax::Weigh(const Primitives& primitives,
                                std::span<float> scores) {
  const int count = static_cast<int>(scores.size());
  // A score that overflowed to -infinity weighs nothing; as M it would make
  // every difference to it a NaN.
  const float m = std::max(primitives.max(scores.data(), count),
                           std::numeric_limits<float>::lowest());

  // The first tile sets M. A later one moves it only upwards, and then what was
  // summed under the old M shrinks by c.
  // [rescale]
  OnlineStep step{.M_before = empty ? m : M};
  if (empty) {
    M = m;
    empty = false;
  } else if (m > M) {
    const float c = Exp(M - m);
    S *= c;
    primitives.scale(acc.data(), static_cast<int>(acc.size()), c);
    M = m;
    step.factor = c;
    step.rescaled = true;
  }
  // [rescale]

  // [weights]
  S += primitives.exp_and_sum(scores.data(), count, M);
  // [weights]
  return step;
}

}  // namespace kvlab
