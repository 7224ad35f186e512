/// \file
/// What day09_accuracy found, told to people, to spreadsheets, to programs and
/// as a picture.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/lab/dump_comparison.h"
#include "day09_kv_q8/accuracy.h"

namespace kvlab {

/// Everything that was measured.
struct AccuracyReport {
  /// A chosen input, over all its draws.
  struct Input {
    std::string name;
    AccuracyErrors errors;
  };
  std::vector<Input> inputs;

  int layers = 0;
  int heads = 0;  ///< query heads
  /// The model's own queries, keys and values: the same f32 numbers, exact and
  /// rounded, so that each layer's error is its own.
  std::vector<AccuracyErrors> by_layer;  ///< [layers]
  std::vector<AccuracyErrors> by_head;   ///< [layers][heads]
  /// Attention outputs of the q8 run against the f32 run, errors that earlier
  /// layers passed on included. [layers]
  std::vector<OutputErrors> as_run;
  LogitErrors prefill_logits;  ///< f32 and q8 cache, three-pass attention
  LogitErrors decode_logits;   ///< three_pass and q8_single_pass

  /// Scores of all inputs and layers, and those beyond their bound.
  ScoreErrors scores() const;
};

/// Throws Error if a score is beyond its bound: no input can do that, so the
/// quantiser or the derivation is wrong.
void RequireWithinBounds(const AccuracyReport& report);

/// The tables on stdout.
std::string AccuracyText(const AccuracyReport& report);

/// Flat objects with the same keys, null where a key means nothing: a row for
/// each input, layer and head in each form and arm; for each layer as run; for
/// the logits.
nlohmann::ordered_json AccuracyRows(const AccuracyReport& report);

/// gnuplot's script for the picture (see common/lab/gnuplot.h): relative L2 of
/// the output for each input and layer, in both forms of scales. `subtitle`:
/// one line.
std::string AccuracyPlotScript(const AccuracyReport& report,
                               const std::string& subtitle);

/// The error of each layer and head, all rounded, one scale a row: for
/// ErrorPlotScript.
HeadErrors AccuracyHeadErrors(const AccuracyReport& report);

}  // namespace kvlab
