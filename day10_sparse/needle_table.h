/// \file
/// The needle question under every configuration of the article's table, and
/// with every budget of blocks: one prompt, read once for each KV format.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/parallel.h"
#include "common/engine/generate.h"
#include "common/lab/model_prompt.h"
#include "day10_sparse/needle_trace.h"
#include "day10_sparse/sparse_topk.h"

namespace kvlab {

/// What the table is made of.
struct TableSettings {
  PromptOptions prompt = {};
  std::vector<int> ks = {64, 32, 16, 8, 4, 2, 1};
  bool own_ks = false;  ///< the user's list
  std::vector<KvFormat> formats = {KvFormat::kF32, KvFormat::kQ8};
  SparseOptions sparse = {};  ///< k and sparse_prefill aside
  std::string importance = "raw";
  int max_tokens = 40;
  int threads = 1;
};

/// "f32" or "q8".
std::string_view FormatName(KvFormat format);

/// One row: a stage, and what came out.
struct NeedleRun {
  std::string stage;
  KvFormat kv = KvFormat::kF32;
  std::optional<SparseOptions> sparse = {};  ///< of stage 4
  bool ran_exact = false;  ///< stage 4 chose all blocks in every step

  std::vector<int> tokens = {};
  bool stopped = false;  ///< by a stop token, not by max_tokens
  std::string output = {};
  bool found = false;
  bool verbatim = false;  ///< the needle's sentence, word for word
  /// The first token (from 0) that the exact stage of this format, the first
  /// of its rows, has otherwise; nothing if there is none.
  std::optional<std::size_t> first_difference = {};

  double prefill_s = 0;
  std::optional<double> attention_ms = {};  ///< median of the decode steps
  std::optional<double> select_ms = {};     ///< of it to choose
  std::optional<double> total_ms = {};
  /// Of what exact attention would weigh, the share of what was chosen: the
  /// mean over steps, layers and heads.
  std::optional<double> mass = {};
  std::optional<double> read_bytes = {};  ///< of the cache, a token
  double exact_read_bytes = 0;            ///< all keys and values, the same
  std::int64_t kv_bytes = 0;
  std::string why = {};  ///< the needle was missed; see WhyMissed
};

/// Runs them all: for each format its exact stages, then k after k, then the
/// smallest k with sparse prefill. The prompt is read exactly once a format.
/// `check` is called with the share of the prefill that is done (or 1), and may
/// throw to stop.
std::vector<NeedleRun> RunTable(const TableSettings& settings,
                                const Model& model, const Prompt& prompt,
                                const Primitives& primitives,
                                const std::function<void(double)>& check);

}  // namespace kvlab
