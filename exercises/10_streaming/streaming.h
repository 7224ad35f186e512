/// \file
/// Exercise "streaming": attention over keys and values that arrive in chunks,
/// perhaps in several streams at once.
#pragma once

#include <optional>
#include <span>
#include <vector>

namespace kvlab {

/// Successive tokens of one KV head: rows of d numbers without a gap.
struct Chunk {
  int tokens = 0;                 ///< 1 to 32
  std::span<const float> keys;    ///< [tokens][d]
  std::span<const float> values;  ///< [tokens][d]
};

/// Tokens that arrive in chunks; how many is not known before the end.
class ChunkSource {
 public:
  virtual ~ChunkSource() = default;

  /// The next chunk, or nothing at the end. There is memory for one: the last
  /// chunk is overwritten.
  virtual std::optional<Chunk> Next() = 0;
};

/// The running softmax of one query over some tokens.
struct SoftmaxPart {
  float M = 0;  ///< their largest score; means nothing if there are none
  float S = 0;  ///< sum of exp(score - M); 0 if there are none
  std::vector<float> acc;  ///< [d] sum of exp(score - M) V; zeros if none
};

/// Reads a stream to its end. One that ends at once gives a part of no tokens.
SoftmaxPart ReadStream(std::span<const float> query, ChunkSource& source);

/// The part of the tokens of both. Either may have none.
SoftmaxPart Merge(const SoftmaxPart& a, const SoftmaxPart& b);

/// The output, acc / S. Throws Error if the part has no tokens.
std::vector<float> Output(const SoftmaxPart& part);

}  // namespace kvlab
