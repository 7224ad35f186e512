/// \file
/// Other ways to fill k places, to see what each signal of the article's way is
/// worth: all arms have the same budget, and each knows one thing alone.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "day10_sparse/block_selection.h"

namespace kvlab {

/// How the places are filled.
enum class BlockArm {
  kArticle,     ///< reserve, fill, recency: stage 4 as it is
  kOracle,      ///< the blocks that exact attention gives the most
  kProbe,       ///< the largest probes
  kImportance,  ///< the largest importance
  kRecency,     ///< the last blocks
  kRandom       ///< drawn by seed, layer, head and position
};

inline constexpr std::array kBlockArms = {
    BlockArm::kArticle,    BlockArm::kOracle,  BlockArm::kProbe,
    BlockArm::kImportance, BlockArm::kRecency, BlockArm::kRandom};

/// "article", "oracle", "probe", "importance", "recency", "random".
std::string_view BlockArmName(BlockArm arm);

/// A selector that fills min(k, blocks) places so. `seed` is of kRandom, which
/// draws the same blocks for the same query whenever it is asked. Reasons other
/// than the article's tell only taken from dropped.
std::unique_ptr<BlockSelector> MakeArm(BlockArm arm, std::uint64_t seed);

}  // namespace kvlab
