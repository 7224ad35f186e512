/// \file
/// What is done of a grid, kept in a file so that it can be interrupted.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "day10_sparse/needle_grid.h"

namespace kvlab {

/// A text file of JSON lines: the settings, then one line for each unit that is
/// done. A line is written whole when its unit is; a last line without its end
/// was cut off by a crash, and its unit counts as not done.
class Journal {
 public:
  /// Opens or begins a journal of these settings (GridSettings::Json). Throws a
  /// usage Error, leaving the file as it is, if it is something else, if
  /// it holds units of other settings, or if another run has it open.
  Journal(const std::filesystem::path& path, const GridSettings& settings,
          const nlohmann::ordered_json& header);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  /// What it held when it was opened.
  const std::vector<GridUnit>& units() const { return units_; }

  /// Adds a unit. Throws Error.
  void Append(const GridUnit& unit);

 private:
  void Read(const std::string& header);
  GridUnit ReadUnit(std::string_view line, std::size_t number) const;
  void WriteLine(const std::string& line);

  std::filesystem::path path_;
  const GridSettings& settings_;
  int fd_ = -1;
  std::vector<GridUnit> units_;
};

}  // namespace kvlab
