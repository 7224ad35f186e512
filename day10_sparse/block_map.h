/// \file
/// The block map: a row for each query, a character or a coloured cell for each
/// block of the cache, to be read at a glance.
///
///     layer  head  0         10        20        30
///                                                 NN
///     2      0-3   I..I............................P................PR
///
/// It shows what the stage tells an observer and chooses nothing.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/attention/observer.h"
#include "common/lab/needle_prompt.h"
#include "common/lab/trace.h"
#include "day10_sparse/block_selection.h"

namespace kvlab {

/// How a reason is written.
struct MapSymbol {
  BlockReason reason;
  char character;
};
inline constexpr std::array kMapSymbols = {
    MapSymbol{BlockReason::kImportance, 'I'},
    MapSymbol{BlockReason::kProbe, 'P'}, MapSymbol{BlockReason::kRecency, 'R'},
    MapSymbol{BlockReason::kLowerProbe, '.'},
    MapSymbol{BlockReason::kEvictedByRecency, 'x'}};

/// What one query did with each block.
struct MapRow {
  int step = 0;
  int layer = 0;
  int head = 0;
  std::string blocks;  ///< a character for each, in ascending order
};

/// Collects the rows while a generation runs: attach it as an observer.
class BlockMap final : public Observer {
 public:
  /// Step 0 is the query at position `prompt_tokens`.
  BlockMap(const TraceFilter& filter, int prompt_tokens)
      : filter_(filter), prompt_tokens_(prompt_tokens) {}

  void OnSelection(const HeadId& id, int block_tokens,
                   std::span<const BlockEvent> blocks) override;

  /// By step, layer and head.
  const std::vector<MapRow>& rows() const { return rows_; }
  /// Why there is no row: the end of a message.
  std::string WhyEmpty() const { return WhyNothing(filter_, last_step_); }

 private:
  TraceFilter filter_;
  int prompt_tokens_;
  int last_step_ = -1;
  std::vector<MapRow> rows_;
};

/// What a map is about.
struct MapLegend {
  int block_tokens = 32;
  std::optional<TokenRange> needle = {};  ///< where its sentence stands
  int prompt_tokens = 0;
  std::vector<std::string> tokens = {};  ///< text of each cached token

  /// The blocks that hold these tokens.
  std::optional<TokenRange> NeedleBlocks() const;
};

/// The map as lines of at most `columns` characters (but of ten blocks at
/// least): longer rows go on below, under the numbers of their blocks, leaving
/// out where there is nothing to see. Heads of a layer that follow one another
/// and did the same share a row.
std::string BlockMapText(const std::vector<MapRow>& rows,
                         const MapLegend& legend, int columns);

/// The script that makes gnuplot print the map as an SVG (see DrawSvg), a row
/// for each head, under a title of two lines.
std::string BlockMapScript(const std::vector<MapRow>& rows,
                           const MapLegend& legend, const std::string& heading,
                           const std::string& subheading);

}  // namespace kvlab
