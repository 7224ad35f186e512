/// \file
/// Quantiles of measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace kvlab {

/// The value below which a `share` (0 ... 1) of the values lie, to the nearest
/// value; 0.5 is the median. `values` is not empty.
inline double Quantile(std::vector<double> values, double share) {
  const auto place = static_cast<std::ptrdiff_t>(
      share * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + place, values.end());
  return values[static_cast<std::size_t>(place)];
}

/// The median; nullopt if there is no value.
inline std::optional<double> Median(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return Quantile(values, 0.5);
}

}  // namespace kvlab
