/// \file
/// What exact attention would give each block: the truth that a selection is
/// measured against. It reads every key, so it is for measurements alone.
#pragma once

#include <vector>

#include "common/attention/tile_reader.h"

namespace kvlab {

/// The share of the softmax weights that each block of `block_tokens` tokens
/// holds, [blocks], for query `head` of the reader over the first `tokens`
/// tokens. The shares add up to 1, unless scores are no numbers.
std::vector<double> BlockMasses(TileReader& reader,
                                const Primitives& primitives, int head,
                                int tokens, int block_tokens);

}  // namespace kvlab
