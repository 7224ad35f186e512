/// \file
/// What day10_scaling measured, for people, spreadsheets and gnuplot.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "day10_sparse/pits.h"
#include "day10_sparse/quality.h"
#include "day10_sparse/scaling.h"

namespace kvlab {

/// Lesson 10-1: a line for each length, the crossover, what to think of it.
std::string ScalingText(std::span<const ScalingPoint> points);
/// An object for each length; times in microseconds.
nlohmann::ordered_json ScalingRows(std::span<const ScalingPoint> points);
/// A gnuplot script (see DrawSvg): time against length, both logarithmic.
std::string ScalingPlotScript(std::span<const ScalingPoint> points,
                              const std::string& subtitle);

/// Quality: a line for each k, and mean recall of each layer and head.
std::string QualityText(std::span<const QualityRow> rows, int heads);
/// An object for each k and head (head and layer null: of all heads).
nlohmann::ordered_json QualityRows(std::span<const QualityRow> rows, int heads);

/// The table and the sentence of an experiment.
std::string PitText(const PitReport& report);

}  // namespace kvlab
