/// \file
/// A way of your own to choose blocks.
#pragma once

#include <memory>

#include "day10_sparse/block_selection.h"

namespace kvlab {

/// Makes your selector: a class derived from BlockSelector, which
/// block_selection.h declares. Every call makes a new one, and all of them
/// choose alike.
///
/// Of SelectionInput it is given k, the probes, the importance (which may be
/// empty) and the id; never the masses. Selection::blocks holds at least one
/// block and at most k, ascending, none twice; Selection::reasons has an entry
/// for each block of the cache, and IsTaken of it is true for the chosen ones
/// alone. Which of the reasons you give is for the trace to show.
std::unique_ptr<BlockSelector> MakeOwnSelector();

}  // namespace kvlab
