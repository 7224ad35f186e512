#include "exercises/10_streaming/streaming.h"

#include <algorithm>
#include <limits>

#include "common/attention/attention_stage.h"
#include "common/base/deterministic_math.h"
#include "common/base/error.h"

namespace kvlab {
namespace {

/// (q . K[t]) / sqrt(d), t counted within the chunk.
float Score(std::span<const float> query, const Chunk& chunk, int t) {
  const int d = static_cast<int>(query.size());
  float dot = 0;
  for (int i = 0; i < d; ++i) dot += query[i] * chunk.keys[t * d + i];
  return dot * AttentionScale(d);
}

}  // namespace

SoftmaxPart ReadStream(std::span<const float> query, ChunkSource& source) {
  const int d = static_cast<int>(query.size());
  SoftmaxPart part;
  part.acc.assign(query.size(), 0.0f);
  // 1. Now it collects all chunks, and works when the last is there.
  // [yours]
  std::vector<Chunk> chunks;
  while (const std::optional<Chunk> chunk = source.Next()) {
    chunks.push_back(*chunk);
  }
  part.M = std::numeric_limits<float>::lowest();
  for (const Chunk& chunk : chunks) {
    for (int t = 0; t < chunk.tokens; ++t) {
      part.M = std::max(part.M, Score(query, chunk, t));
    }
  }
  for (const Chunk& chunk : chunks) {
    for (int t = 0; t < chunk.tokens; ++t) {
      const float w = Exp(Score(query, chunk, t) - part.M);
      part.S += w;
      for (int i = 0; i < d; ++i) part.acc[i] += w * chunk.values[t * d + i];
    }
  }
  // [yours]
  return part;
}

SoftmaxPart Merge(const SoftmaxPart& a, const SoftmaxPart& b) {
  // 2. Now one of the two is lost.
  // [yours]
  return a.M > b.M ? a : b;
  // [yours]
}

std::vector<float> Output(const SoftmaxPart& part) {
  // 3. Now a stream without a token gives 0 / 0.
  // [yours]
  // [yours]
  std::vector<float> out = part.acc;
  for (float& x : out) x /= part.S;
  return out;
}

}  // namespace kvlab
