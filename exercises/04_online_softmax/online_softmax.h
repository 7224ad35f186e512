/// \file
/// Exercise "online_softmax": attention of one query over keys and values that
/// arrive tile by tile.
#pragma once

#include <span>
#include <vector>

namespace kvlab {

/// Successive tokens of one KV head: rows of d numbers without a gap.
struct Tile {
  int tokens = 0;                 ///< 32, or fewer in the last
  std::span<const float> keys;    ///< [tokens][d]
  std::span<const float> values;  ///< [tokens][d]
};

/// Gives the tokens of one KV head in order. There is memory for one tile: the
/// next one takes the place of the last.
class TileSource {
 public:
  virtual ~TileSource() = default;

  /// Puts the next tile into `tile`, or returns false: there is none left.
  virtual bool Next(Tile& tile) = 0;

  /// Begins again with the first tile. Only three passes need it.
  virtual void Rewind() = 0;
};

/// out[d] = sum over t of p[t] V[t], p = softmax of (q . K[t]) / sqrt(d).
///
/// `query` has d numbers; `source` gives at least one token.
std::vector<float> Attend(std::span<const float> query, TileSource& source);

}  // namespace kvlab
