#include "exercises/07_single_pass_q8/single_pass_q8.h"

#include <algorithm>
#include <cmath>

#include "common/attention/attention_stage.h"
#include "common/base/deterministic_math.h"

namespace kvlab {
namespace {

/// The recurrence of stage 2, token by token. It never sees K or V.
struct RunningSoftmax {
  explicit RunningSoftmax(int d) : acc(static_cast<std::size_t>(d), 0.0f) {}

  /// Takes the next score and returns its weight.
  float Weigh(float score) {
    if (first) {
      M = score;
      first = false;
    } else if (score > M) {
      const float c = Exp(M - score);
      S *= c;
      for (float& x : acc) x *= c;
      M = score;
    }
    const float w = Exp(score - M);
    S += w;
    return w;
  }

  float M = 0;
  float S = 0;
  std::vector<float> acc;
  bool first = true;
};

}  // namespace

QueryCodes QuantiseQuery(std::span<const float> query) {
  const int d = static_cast<int>(query.size());
  QueryCodes result;
  // 1. A scale for every group, and the codes. Now they are all 0.
  // [yours]
  for (int first = 0; first < d; first += 32) {
    const int end = std::min(first + 32, d);
    float largest = 0;
    for (int i = first; i < end; ++i) {
      largest = std::max(largest, std::abs(query[i]));
    }
    const float scale = largest / 127.0f;
    result.scales.push_back(scale);
    for (int i = first; i < end; ++i) {
      // nearbyint rounds ties to even, unless told otherwise; round() does not.
      const float x = scale == 0 ? 0.0f : std::nearbyint(query[i] / scale);
      result.codes.push_back(
          static_cast<std::int8_t>(std::clamp(x, -127.0f, 127.0f)));
    }
  }
  // [yours]
  return result;
}

float Score(const QueryCodes& query, const CodeRows& keys, int t) {
  const std::span<const std::int8_t> key = keys.Codes(t);
  const int d = keys.d();
  // 2. Now it is one sum of integers over all of d, and no scale.
  // [yours]
  float sum = 0;
  for (int first = 0; first < d; first += 32) {
    const int end = std::min(first + 32, d);
    int dot = 0;  // up to 32 * 127 * 127: exact in an int, not in 16 bits
    for (int i = first; i < end; ++i) dot += query.codes[i] * key[i];
    sum += static_cast<float>(dot) * query.scales[first / 32];
  }
  return sum * keys.Scale(t) * AttentionScale(d);
  // [yours]
}

std::vector<float> SinglePass(std::span<const float> query,
                              const CodeRows& keys, const CodeRows& values) {
  const int d = keys.d();
  const QueryCodes q = QuantiseQuery(query);  // once for the whole scan
  RunningSoftmax softmax(d);
  for (int t = 0; t < keys.tokens(); ++t) {
    const float w = softmax.Weigh(Score(q, keys, t));
    const std::span<const std::int8_t> value = values.Codes(t);
    // 3. Now it adds codes as if they were the values.
    // [yours]
    // The scale is one for the row: with the weight it is one factor.
    const float factor = w * values.Scale(t);
    for (int i = 0; i < d; ++i) softmax.acc[i] += factor * value[i];
    // [yours]
  }
  for (float& x : softmax.acc) x /= softmax.S;
  return softmax.acc;
}

}  // namespace kvlab
