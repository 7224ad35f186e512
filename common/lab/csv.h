/// \file
/// Rows of a report as comma-separated values.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvlab {

/// An array of objects as CSV (RFC 4180), the names first. The keys of an
/// object within a row are joined to its own by a dot; the rows' keys together
/// are the columns, and what a row has not is empty.
std::string CsvText(const nlohmann::ordered_json& rows);

}  // namespace kvlab
