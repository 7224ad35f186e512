/// \file
/// What is done of a grid, kept in a file so that it can be interrupted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "day10_sparse/needle_grid.h"

namespace kvlab {

/// What the files of a model and the facts hold, for a journal's header: by
/// name and sizes a model that was trained again is the same one. Settings to
/// be added to GridSettings::Json. Throws Error.
nlohmann::ordered_json Fingerprints(const Model& model);

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

  /// Adds a unit. Throws Error, also if the file is no longer what this object
  /// wrote: whoever goes on from it would miss or mix up units.
  void Append(const GridUnit& unit);

  /// What became of the file since; empty if it is as it was left. A deleted
  /// file can be written to as if nothing were wrong, so this must be asked.
  std::string Damage() const;
  /// Throws Error if there is any.
  void RequireIntact() const;

 private:
  void Read(const std::string& header);
  GridUnit ReadUnit(std::string_view line, const std::string& where,
                    const std::optional<FactBook>& book) const;
  void WriteLine(const std::string& line);

  std::filesystem::path path_;
  const GridSettings& settings_;
  int fd_ = -1;
  std::uint64_t size_ = 0;  // bytes that the file must have
  std::vector<GridUnit> units_;
};

}  // namespace kvlab
