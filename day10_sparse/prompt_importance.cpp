#include "day10_sparse/prompt_importance.h"

#include "day10_sparse/block_selection.h"

namespace kvlab {

std::vector<double> PromptImportance::OfBlocks(
    std::span<const double> importance, int tokens) {
  if (importance.empty() || use_ == ImportanceUse::kOff) return {};
  const std::lock_guard lock(mutex_);
  if (prompt_.empty()) {
    // An early token was seen by more queries than a late one.
    std::vector<double> shares(importance.begin(), importance.end());
    if (use_ == ImportanceUse::kPerViewer) {
      for (std::size_t s = 0; s < shares.size(); ++s) {
        shares[s] /= static_cast<double>(shares.size() - s);
      }
    }
    prompt_ =
        BlockImportance(shares, static_cast<int>(shares.size()), block_tokens_);
  }
  // Tokens decoded since then have none.
  std::vector<double> sums = prompt_;
  sums.resize(static_cast<std::size_t>(BlockCount(tokens, block_tokens_)));
  return sums;
}

}  // namespace kvlab
