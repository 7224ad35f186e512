#include "common/lab/trace.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/loader/json.h"

namespace kvlab {

bool TraceFilter::Has(int a_layer, int a_head, int a_step) const {
  return layer.value_or(a_layer) == a_layer &&
         head.value_or(a_head) == a_head && step.value_or(a_step) == a_step;
}

std::string WhyNothing(const TraceFilter& filter, int last_step) {
  return filter.step && last_step >= 0
             ? StrCat("there was no decode step ", *filter.step,
                      ", the last was ", last_step)
             : "the answer ended before the first decode step";
}

bool TraceRecorder::Keep(const HeadId& id) {
  const int step = id.position - prompt_tokens_;
  last_step_ = std::max(last_step_, step);
  return filter_.Has(id.layer, id.head, step);
}

nlohmann::ordered_json TraceRecorder::NewCall(const HeadId& id) const {
  return {{"layer", id.layer},
          {"head", id.head},
          {"step", id.position - prompt_tokens_},
          {"position", id.position}};
}

void TraceRecorder::OnSelection(const HeadId& id, int block_tokens,
                                std::span<const BlockEvent> blocks) {
  using Json = nlohmann::ordered_json;
  if (!Keep(id)) return;
  Json call = NewCall(id);
  call["block_tokens"] = block_tokens;
  call["blocks"] = Json::array();
  for (const BlockEvent& block : blocks) {
    const bool known = block.importance_rank > 0;
    call["blocks"].push_back(
        {{"probe", block.probe},
         {"probe_rank", block.probe_rank},
         {"importance", known ? Json(block.importance) : Json()},
         {"importance_rank", known ? Json(block.importance_rank) : Json()},
         {"taken", block.taken},
         {"reason", block.reason}});
  }
  calls_.push_back(std::move(call));
}

void TraceRecorder::OnTile(const HeadId& id, const TileEvent& event) {
  using Json = nlohmann::ordered_json;
  if (!Keep(id)) return;
  const int step = id.position - prompt_tokens_;
  const bool first = event.first_token == 0;
  if (first) {
    calls_.push_back(NewCall(id));
    calls_.back()["tiles"] = Json::array();
  }
  // The heads of a group take turns at each tile: find this one's call.
  const auto call =
      std::find_if(calls_.rbegin(), calls_.rend(), [&](const Json& c) {
        return c["layer"] == id.layer && c["head"] == id.head &&
               c["step"] == step;
      });
  KVLAB_CHECK(call != calls_.rend());
  (*call)["tiles"].push_back(
      {{"first_token", event.first_token},
       {"scores", std::vector<float>(event.scores.begin(), event.scores.end())},
       {"M_before", first ? Json() : Json(event.step.M_before)},
       {"M", event.M},
       {"S", event.S},
       {"factor", event.step.factor},
       {"rescaled", event.step.rescaled}});
}

void TraceRecorder::Write(OutputFile& file,
                          const nlohmann::ordered_json& settings,
                          const std::vector<std::string>& tokens) const {
  if (calls_.empty()) {
    Fail("--trace ", PathText(file.path()),
         ": nothing to write: ", WhyNothing(filter_, last_step_));
  }
  nlohmann::ordered_json trace = {{"format", "kvlab trace 1"}};
  trace.update(settings);
  trace["tokens"] = tokens;
  trace["calls"] = calls_;
  const bool script = file.path().extension() == ".js";
  if (script) {
    file.Write("(window.kvlabTraces = window.kvlabTraces || []).push(");
  }
  file.Write(trace.dump(-1, ' ', false,
                        nlohmann::ordered_json::error_handler_t::replace));
  file.Write(script ? ");\n" : "\n");
}

}  // namespace kvlab
