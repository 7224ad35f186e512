/// \file
/// A comparison of two dumps, told to people and to programs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/lab/dump_comparison.h"
#include "common/loader/safetensors.h"

namespace kvlab {

/// The comparison on a page: the verdict in the first line, the first
/// difference, a table of all tensors (of many: those that differ), where each
/// differs most, and what may explain it. Names and values out of the files are
/// made fit for a terminal.
std::string ComparisonText(const SafetensorsFile& a, const SafetensorsFile& b,
                           const DumpComparison& comparison,
                           std::optional<double> tolerance);

/// Everything that is known, as one object. Numbers that JSON does not have
/// become the strings "nan", "inf" and "-inf".
nlohmann::ordered_json ComparisonJson(const SafetensorsFile& a,
                                      const SafetensorsFile& b,
                                      const DumpComparison& comparison,
                                      std::optional<double> tolerance);

/// {"file", "metadata"}.
nlohmann::ordered_json DumpFileJson(const SafetensorsFile& file);

}  // namespace kvlab
