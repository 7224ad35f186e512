/// \file
/// Lesson 10-3: where sparse attention loses, one experiment each. Each returns
/// a table and a sentence that says what the numbers show.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/lab/model_prompt.h"
#include "common/simd/primitives.h"

namespace kvlab {

/// What an experiment found.
struct PitReport {
  std::string title;
  std::string columns;  ///< 'l' or 'r' for each (TextTable)
  std::vector<std::vector<std::string>> rows;  ///< the first: headings
  std::string sentence = {};
};

/// What an experiment may use.
struct PitSettings {
  const Primitives& primitives;
  const Model* model = nullptr;  ///< null for those on random numbers
  PromptOptions prompt = {};
  int threads = 1;
  int rounds = 9;    ///< of what is timed
  bool cold = true;  ///< what is timed comes from memory
  /// Called often; may throw to stop.
  std::function<void()> check = [] {};
  std::function<void(double done)> progress = [](double) {};
};

/// One experiment.
struct Pit {
  std::string_view name;   ///< of the command
  std::string_view about;  ///< one sentence
  bool needs_model;
  PitReport (*run)(const PitSettings&);
};

/// On random numbers: fewer blocks than k; one token between two probes; the
/// share of probing as the context grows; what is left of the gain in the whole
/// step of a real model's shape.
PitReport ShortContext(const PitSettings& settings);
PitReport HiddenToken(const PitSettings& settings);
PitReport ProbeShare(const PitSettings& settings);
PitReport TotalTime(const PitSettings& settings);

/// On the model: a needle in two blocks; importance favours early tokens;
/// importance after 400 decoded tokens; facts that look like the needle; heads
/// of a GQA group that want different blocks.
PitReport Straddle(const PitSettings& settings);
PitReport EarlyBias(const PitSettings& settings);
PitReport StaleImportance(const PitSettings& settings);
PitReport Decoys(const PitSettings& settings);
PitReport GroupedHeads(const PitSettings& settings);

/// All of them, in the order of the lesson.
const std::vector<Pit>& AllPits();

}  // namespace kvlab
