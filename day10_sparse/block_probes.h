/// \file
/// Probing (lesson 10-2): a guess at how well each block answers a query, from
/// a few of its keys.
#pragma once

#include <vector>

#include "common/attention/tile_reader.h"

namespace kvlab {

/// The largest dot, not scaled, of the sampled keys of each block (ProbesOf
/// says which): [heads][blocks], for queries 0 to heads - 1 of the reader over
/// the first `tokens` tokens. A dot that is no number stays one.
std::vector<std::vector<float>> ProbeBlocks(const Primitives& primitives,
                                            TileReader& reader, int heads,
                                            int tokens, int block_tokens,
                                            int n_probe);

}  // namespace kvlab
