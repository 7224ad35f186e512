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
  while (const std::optional<Chunk> chunk = source.Next()) {
    for (int t = 0; t < chunk->tokens; ++t) {
      const float score = Score(query, *chunk, t);
      if (part.S == 0) {
        part.M = score;  // the first token
      } else if (score > part.M) {
        const float c = Exp(part.M - score);
        part.S *= c;
        for (float& x : part.acc) x *= c;
        part.M = score;
      }
      const float w = Exp(score - part.M);
      part.S += w;
      for (int i = 0; i < d; ++i) part.acc[i] += w * chunk->values[t * d + i];
    }
  }
  // [yours]
  return part;
}

SoftmaxPart Merge(const SoftmaxPart& a, const SoftmaxPart& b) {
  // 2. Now one of the two is lost.
  // [yours]
  // The M of a part without tokens is no score: it must not be compared.
  if (a.S == 0) return b;
  if (b.S == 0) return a;
  SoftmaxPart both = a;
  both.M = std::max(a.M, b.M);
  const float ca = Exp(a.M - both.M);
  const float cb = Exp(b.M - both.M);
  both.S = ca * a.S + cb * b.S;
  for (std::size_t i = 0; i < both.acc.size(); ++i) {
    both.acc[i] = ca * a.acc[i] + cb * b.acc[i];
  }
  return both;
  // [yours]
}

std::vector<float> Output(const SoftmaxPart& part) {
  // 3. Now a stream without a token gives 0 / 0.
  // [yours]
  if (part.S == 0) {
    Fail(
        "attention: expected at least one token, found none; did the stream "
        "end before its first chunk?");
  }
  // [yours]
  std::vector<float> out = part.acc;
  for (float& x : out) x /= part.S;
  return out;
}

}  // namespace kvlab
