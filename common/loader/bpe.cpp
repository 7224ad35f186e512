#include "common/loader/bpe.h"

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "common/base/error.h"

namespace kvlab {
namespace {

constexpr int kNone = -1;

/// A piece of the word; a linked list over an array.
struct Symbol {
  int id;  // kNone once it has been merged into its left neighbour
  int previous;
  int next;
};

/// A pair that may be merged: the symbol at `position` and its next one.
struct Candidate {
  int rank;
  int position;
  int merged;
  // For a heap whose top is the lowest rank, leftmost.
  bool operator<(const Candidate& other) const {
    return std::tie(rank, position) > std::tie(other.rank, other.position);
  }
};

}  // namespace

Bpe::Bpe(std::vector<BpeMerge> merges, int id_count)
    : merges_(std::move(merges)),
      starts_(static_cast<std::size_t>(id_count) + 1) {
  const auto pair = [](const BpeMerge& m) { return std::tie(m.left, m.right); };
  const auto same = [&](const BpeMerge& a, const BpeMerge& b) {
    return pair(a) == pair(b);
  };
  // Reversed first: the stable sort then has the rule given last in front of
  // its doubles, and unique keeps the first.
  std::reverse(merges_.begin(), merges_.end());
  std::stable_sort(
      merges_.begin(), merges_.end(),
      [&](const BpeMerge& a, const BpeMerge& b) { return pair(a) < pair(b); });
  merges_.erase(std::unique(merges_.begin(), merges_.end(), same),
                merges_.end());
  std::size_t m = 0;
  for (int left = 0; left <= id_count; ++left) {
    while (m < merges_.size() && merges_[m].left < left) ++m;
    starts_[static_cast<std::size_t>(left)] = m;
  }
}

const BpeMerge* Bpe::Find(int left, int right) const {
  const auto l = static_cast<std::size_t>(left);
  const auto first = merges_.begin() + static_cast<std::ptrdiff_t>(starts_[l]);
  const auto last =
      merges_.begin() + static_cast<std::ptrdiff_t>(starts_[l + 1]);
  const auto found = std::lower_bound(
      first, last, right,
      [](const BpeMerge& merge, int r) { return merge.right < r; });
  return found != last && found->right == right ? &*found : nullptr;
}

std::size_t Bpe::Encode(std::span<const int> word,
                        std::vector<int>& out) const {
  if (word.size() < 2 || merges_.empty()) {
    out.insert(out.end(), word.begin(), word.end());
    return 0;
  }
  const int size = static_cast<int>(word.size());
  // Words come by the million: their buffers are kept.
  thread_local std::vector<Symbol> symbols;
  thread_local std::vector<Candidate> queue;
  symbols.clear();
  queue.clear();
  const auto at = [](int i) -> Symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };
  const auto candidate = [&](int i) -> bool {
    const BpeMerge* merge = Find(at(i).id, at(at(i).next).id);
    if (merge == nullptr) return false;
    queue.push_back({merge->rank, i, merge->merged});
    return true;
  };

  for (int i = 0; i < size; ++i) {
    symbols.push_back({word[static_cast<std::size_t>(i)], i - 1,
                       i + 1 < size ? i + 1 : kNone});
  }
  for (int i = 0; i + 1 < size; ++i) candidate(i);
  std::make_heap(queue.begin(), queue.end());

  std::size_t handled = 0;
  for (; !queue.empty(); ++handled) {
    const Candidate top = queue.front();
    std::pop_heap(queue.begin(), queue.end());
    queue.pop_back();

    Symbol& left = at(top.position);
    if (left.id == kNone || left.next == kNone) continue;
    Symbol& right = at(left.next);
    // The neighbours may have changed since the pair was queued. Like
    // `tokenizers`, ask only whether today's pair gives the same piece: a pair
    // that gives it by another rule is merged now, at the older rule's rank.
    const BpeMerge* merge = Find(left.id, right.id);
    if (merge == nullptr || merge->merged != top.merged) continue;

    left.id = top.merged;
    left.next = right.next;
    right.id = kNone;
    if (left.next != kNone) at(left.next).previous = top.position;
    if (left.previous != kNone && candidate(left.previous)) {
      std::push_heap(queue.begin(), queue.end());
    }
    if (left.next != kNone && candidate(top.position)) {
      std::push_heap(queue.begin(), queue.end());
    }
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id != kNone) out.push_back(symbol.id);
  }
  // One monstrous word must not hold its memory for good.
  constexpr std::size_t kKeep = 1 << 16;  // symbols, about 1 MB
  if (symbols.capacity() > kKeep) std::vector<Symbol>().swap(symbols);
  if (queue.capacity() > kKeep) std::vector<Candidate>().swap(queue);
  return handled;
}

}  // namespace kvlab
