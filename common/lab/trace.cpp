#include "common/lab/trace.h"

#include <algorithm>

#include "common/base/error.h"
#include "common/loader/json.h"
#include "common/loader/output_file.h"

namespace kvlab {

void TraceRecorder::OnTile(const HeadId& id, const TileEvent& event) {
  using Json = nlohmann::ordered_json;
  const int step = id.position - prompt_tokens_;
  last_step_ = std::max(last_step_, step);
  const auto keep = [](const std::optional<int>& wanted, int is) {
    return !wanted || *wanted == is;
  };
  if (!keep(filter_.layer, id.layer) || !keep(filter_.head, id.head) ||
      !keep(filter_.step, step)) {
    return;
  }
  const bool first = event.first_token == 0;
  if (first) {
    calls_.push_back({{"layer", id.layer},
                      {"head", id.head},
                      {"step", step},
                      {"position", id.position},
                      {"tiles", Json::array()}});
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

void TraceRecorder::Write(const std::filesystem::path& path,
                          const nlohmann::ordered_json& settings,
                          const std::vector<std::string>& tokens) const {
  if (calls_.empty()) {
    Fail("--trace ", PathText(path), ": nothing to write: ",
         filter_.step && last_step_ >= 0
             ? StrCat("there was no decode step ", *filter_.step,
                      ", the last was ", last_step_)
             : "the answer ended before the first decode step");
  }
  nlohmann::ordered_json trace = {{"format", "kvlab trace 1"}};
  trace.update(settings);
  trace["tokens"] = tokens;
  trace["calls"] = calls_;
  const bool script = path.extension() == ".js";
  OutputFile file(path);
  if (script) {
    file.Write("(window.kvlabTraces = window.kvlabTraces || []).push(");
  }
  file.Write(trace.dump(-1, ' ', false,
                        nlohmann::ordered_json::error_handler_t::replace));
  file.Write(script ? ");\n" : "\n");
  file.Commit();
}

}  // namespace kvlab
