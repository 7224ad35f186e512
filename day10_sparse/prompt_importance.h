/// \file
/// The importance of the prompt's blocks (lesson 10-2), added up once a prompt.
#pragma once

#include <mutex>
#include <span>
#include <vector>

namespace kvlab {

/// How the importance of a prompt token is used.
enum class ImportanceUse {
  kRaw,        ///< the attention it received from all prompt queries
  kPerViewer,  ///< divided by the number of queries that could see it
  kOff         ///< not at all
};

/// What the selector sees of a prompt's importance.
class PromptImportance {
 public:
  PromptImportance(ImportanceUse use, int block_tokens)
      : use_(use), block_tokens_(block_tokens) {}

  /// A new prompt.
  void Clear() { prompt_.clear(); }

  /// A number for each block of the first `tokens` tokens of the cache; empty
  /// if none was recorded or none is to be used. `importance`, [prompt tokens],
  /// must be the same until Clear. Several threads may call it at once.
  std::vector<double> OfBlocks(std::span<const double> importance, int tokens);

 private:
  ImportanceUse use_;
  int block_tokens_;
  std::mutex mutex_;
  std::vector<double> prompt_;  // of its blocks, once computed
};

}  // namespace kvlab
