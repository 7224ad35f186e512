/// \file
/// Why a needle was missed, in a sentence, from what was chosen.
#pragma once

#include <string>

#include "day10_sparse/needle_trace.h"

namespace kvlab {

/// A run of stage 4 as the sentence needs it.
struct MissedNeedle {
  bool found = false;
  bool exact_found = false;  ///< exact attention over the same cache format
  bool raw = false;          ///< asked without the chat template
  bool sparse_prefill = false;
  const ChoiceSummary& choices;
};

/// One or two sentences; none for a needle that was found.
std::string WhyMissed(const MissedNeedle& run);

}  // namespace kvlab
