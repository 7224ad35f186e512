/// JSON and CSV of needle_report.h.
#include <algorithm>
#include <cmath>

#include "common/base/error.h"
#include "common/lab/cli.h"
#include "day10_sparse/needle_report.h"

namespace kvlab {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

Json NeedleRows(const TableSettings& settings, const Model& model,
                const Prompt& prompt, const std::vector<NeedleRun>& runs,
                Isa isa) {
  const NeedleOptions& needle = settings.prompt.needle;
  const bool scenario = prompt.needle.has_value();
  Json rows = Json::array();
  for (const NeedleRun& run : runs) {
    Json row;
    row["stage"] = run.stage;
    row["model"] = ModelName(model);
    row["seed"] = scenario ? Json(needle.seed) : Json();
    row["context"] = scenario ? Json(needle.context) : Json();
    row["depth"] = scenario ? Json(needle.depth) : Json();
    row["needle"] = Json();
    if (scenario) {
      row["needle"] = {{"sentence", prompt.needle->needle},
                       {"question", prompt.needle->question},
                       {"expected", prompt.needle->expected},
                       {"found", run.found},
                       {"verbatim", run.verbatim}};
    }
    row["output"] = run.output;
    row["tokens"] = {{"prompt", prompt.tokens.size()},
                     {"generated", run.tokens.size()}};
    row["prefill_s"] = run.prefill_s;
    row["decode"] = {{"attention_ms", OrNull(run.attention_ms)},
                     {"select_ms", OrNull(run.select_ms)},
                     {"total_ms", OrNull(run.total_ms)}};
    row["kv"] = {
        {"format", FormatName(run.kv)},
        {"bytes", run.kv_bytes},
        {"read_bytes",
         run.read_bytes ? Json(std::llround(*run.read_bytes)) : Json()}};
    row["tile"] = run.stage == "online_softmax" || run.stage == "q8_single_pass"
                      ? Json(kTileTokens)
                      : Json();
    row["isa"] = IsaName(isa);
    row["threads"] = settings.threads;
    row["sparse"] = Json();
    if (run.sparse) {
      row["sparse"] = {{"k", run.sparse->k},
                       {"block_size", run.sparse->block_tokens},
                       {"n_probe", run.sparse->n_probe},
                       {"importance", settings.importance},
                       {"sparse_prefill", run.sparse->sparse_prefill},
                       {"dense_below", run.sparse->dense_below}};
    }
    row["ran_exact"] = run.sparse ? Json(run.ran_exact) : Json(true);
    row["same_as_exact"] = !run.first_difference;
    row["first_difference"] = OrNull(run.first_difference);
    row["mass_covered"] = run.sparse ? OrNull(run.mass) : Json(1.0);
    row["why"] = run.why.empty() ? Json() : Json(run.why);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace kvlab
