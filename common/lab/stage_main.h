/// \file
/// What makes a stage a program: options, model, prompt, report, dump.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/attention/attention_stage.h"

namespace kvlab {

/// One program that runs one stage.
struct StageProgram {
  std::string name;         ///< "day09_three_pass"
  std::string description;  ///< for --help: one sentence
  KvFormat kv = KvFormat::kF32;
  /// Tensors that this stage never stores, separated by spaces; for dumps.
  std::string not_materialised;
  std::function<std::unique_ptr<AttentionStage>(const Primitives&)> make_stage;
};

/// Reads the options that all stages share, loads the model, builds the prompt,
/// generates greedily, reports. Returns the exit code.
int StageMain(int argc, const char* const* argv, const StageProgram& program);

}  // namespace kvlab
