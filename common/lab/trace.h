/// \file
/// Traces: what the running softmax of stages 2 and 3 did, tile by tile, and
/// what stage 4 chose, block by block, as JSON for a page to play or a student
/// to read.
///
///     {"format": "kvlab trace 1", "stage": "online_softmax", ...settings,
///      "tokens": ["<|im_start|>", "user", ...],     text of each cached token
///      "calls": [{"layer": 0, "head": 0, "step": 0, "position": 2061,
///                 "tiles": [{"first_token": 0, "scores": [...],
///                            "M_before": null, "M": 3.5, "S": 7.1,
///                            "factor": 1, "rescaled": false}, ...]}, ...]}
///
/// Of stage 4 a call has, in place of "tiles",
///
///     "block_tokens": 32,
///     "blocks": [{"probe": 12.5, "probe_rank": 1, "importance": 40.1,
///                 "importance_rank": 3, "taken": true, "reason": "probe"},
///                ...]
///
/// with null for the importance where none was recorded.
///
/// A call is one query: one decode step, layer and query head. The first tile
/// has no M_before. Numbers are exact (a float printed as a double).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/attention/observer.h"
#include "common/loader/output_file.h"

namespace kvlab {

/// Which calls to keep; an empty one means all of them.
struct TraceFilter {
  std::optional<int> layer;
  std::optional<int> head;
  std::optional<int> step;

  bool Has(int a_layer, int a_head, int a_step) const;
};

/// Why a filter kept nothing: the end of a message. `last_step` is the last
/// that there was, -1 if there was none.
std::string WhyNothing(const TraceFilter& filter, int last_step);

/// Collects while a generation runs; attach it as an observer.
class TraceRecorder final : public Observer {
 public:
  /// Step 0 is the query at position `prompt_tokens`.
  TraceRecorder(const TraceFilter& filter, int prompt_tokens)
      : filter_(filter), prompt_tokens_(prompt_tokens) {}

  void OnTile(const HeadId& id, const TileEvent& event) override;
  void OnSelection(const HeadId& id, int block_tokens,
                   std::span<const BlockEvent> blocks) override;

  /// Writes the file; Commit() is left to the caller: JSON, or for a name that
  /// ends in .js a script that adds the same object to window.kvlabTraces (a
  /// page that is opened from disk cannot fetch). `settings` come first in the
  /// object. Throws Error, also if no call was kept.
  void Write(OutputFile& file, const nlohmann::ordered_json& settings,
             const std::vector<std::string>& tokens) const;

 private:
  /// The call is one that the filter asks for.
  bool Keep(const HeadId& id);
  /// What every call begins with.
  nlohmann::ordered_json NewCall(const HeadId& id) const;

  TraceFilter filter_;
  int prompt_tokens_;
  int last_step_ = -1;  // of any call, kept or not
  std::vector<nlohmann::ordered_json> calls_;
};

}  // namespace kvlab
