/// \file
/// What makes a stage a program: options, model, prompt, report, dump.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/attention/attention_stage.h"
#include "common/lab/stage_view.h"

namespace CLI {
class App;
}

namespace kvlab {

/// What the shared options tell a stage.
struct StageSettings {
  const Primitives& primitives;
  int tile = kTileTokens;  ///< --tile, for stages that have one
};

/// One program that runs one stage.
struct StageProgram {
  std::string name;         ///< "day09_three_pass"
  std::string description;  ///< for --help: one sentence
  KvFormat kv = KvFormat::kF32;
  /// The stage can read both formats, and takes --kv; `kv` is the default.
  bool has_kv = false;
  /// The stage goes through the cache tile by tile, and takes --tile.
  bool has_tile = false;
  std::function<std::unique_ptr<AttentionStage>(const StageSettings&)>
      make_stage;
  /// For a stage that selects blocks: its settings, as --json shows them; it
  /// takes --trace. Called after the options were read.
  std::function<nlohmann::ordered_json()> sparse = {};
  /// For the same: of its time since the last call, the share (0 ... 1) that
  /// went into choosing.
  std::function<double()> select_share = {};
  /// Declares the options that only this stage has; may be empty.
  std::function<void(CLI::App&)> declare_options = {};
  /// What the lesson shows besides the report, from the calls that
  /// --trace-layer, --trace-head and --trace-step choose; may be null.
  StageView* view = nullptr;
};

/// Reads the options that all stages share, loads the model, builds the prompt,
/// generates greedily, reports. Returns the exit code.
int StageMain(int argc, const char* const* argv, const StageProgram& program);

}  // namespace kvlab
