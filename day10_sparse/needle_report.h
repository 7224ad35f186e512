/// \file
/// The needle table as text, and its rows for JSON and CSV.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "day10_sparse/needle_table.h"

namespace kvlab {

/// The article's table, the sweep over k, why the needle was missed where it
/// was, and which row the article's k = 1 resembles: at most 100 columns (more
/// if answers are in wide scripts).
std::string NeedleText(const TableSettings& settings,
                       const std::vector<NeedleRun>& runs, bool has_needle);

/// Which k = 1 row of these resembles the article's (text wrong from its
/// first token, unfinished after 40, prefill 30.0 s of 47.5): told from the
/// rows. Empty where a format has not both, or the question no exact answer.
std::string ArticleText(const std::vector<NeedleRun>& runs);

/// The runs, each an object as --json of a stage's own program has it, with
/// more fields.
nlohmann::ordered_json NeedleRows(const TableSettings& settings,
                                  const Model& model, const Prompt& prompt,
                                  const std::vector<NeedleRun>& runs, Isa isa);

}  // namespace kvlab
