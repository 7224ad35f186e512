/// \file
/// Shuffles candidates, and asks for the same choice each time.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "day10_sparse/block_selection.h"
#include "exercises/15_tie_rule/tie_rule.h"
#include "exercises/checker/code_check.h"

namespace kvlab {
namespace {

constexpr char kLesson[] = "day10_sparse/README.md#four-steps-10-2";
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
/// Shuffles of every list of candidates.
constexpr int kShuffles = 40;

using Candidates = std::vector<Candidate>;

/// A generator whose numbers are the same everywhere; std::shuffle's are not.
class Draw {
 public:
  explicit Draw(std::uint32_t seed) : random_(seed) {}

  int Below(int limit) {
    return static_cast<int>(random_() % static_cast<std::uint32_t>(limit));
  }
  void Shuffle(Candidates& list) {
    for (int i = static_cast<int>(list.size()) - 1; i > 0; --i) {
      std::swap(list[i], list[Below(i + 1)]);
    }
  }

 private:
  std::mt19937 random_;
};

/// "2 0 1"; of a long list the first 12.
std::string Words(const std::vector<int>& blocks) {
  std::string words;
  for (std::size_t i = 0; i < blocks.size() && i < 12; ++i) {
    words += StrCat(i == 0 ? "" : " ", blocks[i]);
  }
  return blocks.size() > 12 ? words + " ..." : words;
}

std::string Arrival(const Candidates& list) {
  std::vector<int> blocks;
  for (const Candidate& c : list) blocks.push_back(c.block);
  return Words(blocks);
}

float ProbeOf(const Candidates& list, int block) {
  return std::ranges::find(list, block, &Candidate::block)->probe;
}

/// What the rule chooses: the engine's order over the blocks' numbers.
std::vector<int> Expected(const Candidates& list, int k) {
  const int largest =
      std::ranges::max_element(list, {}, &Candidate::block)->block;
  std::vector<float> probes(static_cast<std::size_t>(largest) + 1);
  std::vector<int> blocks;
  for (const Candidate& c : list) {
    probes[c.block] = c.probe;
    blocks.push_back(c.block);
  }
  std::ranges::sort(
      blocks, [&](int a, int b) { return ComesBefore<float>(probes, a, b); });
  blocks.resize(std::min(blocks.size(), static_cast<std::size_t>(k)));
  return blocks;
}

/// Calls the student's function, and refuses what is no choice at all.
std::vector<int> Chosen(const CodeCheck& check, const Candidates& list, int k) {
  std::vector<int> blocks = ChooseBlocks(list, k);
  check.ExpectEqual(StrCat("number of chosen blocks, k = ", k, " of ",
                           list.size(), " candidates"),
                    std::min(list.size(), static_cast<std::size_t>(k)),
                    blocks.size());
  std::vector<int> sorted = blocks;
  std::ranges::sort(sorted);
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    check.Expect(
        std::ranges::count(list, sorted[i], &Candidate::block) == 1,
        StrCat("block ", sorted[i],
               " was chosen and is none of the candidates; their numbers are "
               "in Candidate::block, and need not be 0, 1, 2, ..."));
    check.Expect(i == 0 || sorted[i] != sorted[i - 1],
                 StrCat("block ", sorted[i], " was chosen twice"));
  }
  return blocks;
}

/// Which rule puts a block with the probe `expected` before one with `found`.
std::string Rule(float expected, float found) {
  if (std::isnan(expected) && std::isnan(found)) {
    return "all NaNs are equal, whatever their sign, so the smaller block "
           "comes first";
  }
  if ((std::isnan(expected) && found == kInfinity) || std::isnan(found)) {
    return "a NaN counts as +infinity, so the two are equal and the smaller "
           "block comes first";
  }
  if (std::isnan(expected)) {
    return "a NaN comes before every number: a broken key must be read, so "
           "that attention refuses it, not dropped in silence";
  }
  if (expected != found) return "the larger probe comes first";
  return std::signbit(expected) != std::signbit(found)
             ? "-0 equals +0, so the smaller block comes first"
             : "of equal probes the smaller block comes first";
}

/// Shuffles `list` again and again, and expects the choice of the rule for
/// every k.
void ExpectRule(const CodeCheck& check, Draw& draw, Candidates list) {
  const auto all = static_cast<int>(list.size());
  for (int shuffle = 0; shuffle < kShuffles; ++shuffle) {
    for (const int k : {1, (all + 1) / 2, all, all + 3}) {
      const std::vector<int> expected = Expected(list, k);
      const std::vector<int> found = Chosen(check, list, k);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (found[i] == expected[i]) continue;
        const float right = ProbeOf(list, expected[i]);
        const float wrong = ProbeOf(list, found[i]);
        check.Expect(
            false,
            StrCat("place[", i, "] at k = ", k, ": expected block ",
                   expected[i], " (probe ", right, "), found block ", found[i],
                   " (probe ", wrong, "), when the blocks arrive as ",
                   Arrival(list), ": ", Rule(right, wrong)));
      }
    }
    draw.Shuffle(list);
  }
}

/// `count` blocks with probes from `values`, each value at least twice.
Candidates Drawn(Draw& draw, int count, const std::vector<float>& values) {
  Candidates list;
  for (int b = 0; b < count; ++b) {
    const auto some = static_cast<int>(values.size());
    list.push_back({b, values[b < 2 * some ? b % some : draw.Below(some)]});
  }
  // Which block has which is left to chance.
  for (int b = count - 1; b > 0; --b) {
    std::swap(list[b].probe, list[draw.Below(b + 1)].probe);
  }
  return list;
}

void Tests(CodeCheck& check) {
  check.Test("different probes", kLesson, [&] {
    Draw draw(check.Seed());
    for (const int count : {1, 2, 3, 16, 65}) {
      Candidates list;
      for (int b = 0; b < count; ++b) {
        list.push_back({b, 0.25f * static_cast<float>(b - count / 2) + 0.125f});
      }
      draw.Shuffle(list);
      for (int b = 0; b < count; ++b) list[b].block = b;
      ExpectRule(check, draw, list);
    }
  });

  check.Test("order of arrival", kLesson, [&] {
    Draw draw(check.Seed() + 1);
    for (const int count : {8, 16, 65}) {
      Candidates list = Drawn(draw, count, {3.5f, 1.25f, -2.0f});
      const int k = count / 2;
      const std::vector<int> first = Chosen(check, list, k);
      const std::string before = Arrival(list);
      for (int shuffle = 0; shuffle < kShuffles; ++shuffle) {
        draw.Shuffle(list);
        const std::vector<int> found = Chosen(check, list, k);
        for (std::size_t i = 0; i < first.size(); ++i) {
          if (found[i] == first[i]) continue;
          check.Expect(
              false,
              StrCat("place[", i, "] at k = ", k, " of ", count,
                     " blocks: expected block ", first[i],
                     " as when they arrived as ", before, "; found block ",
                     found[i], " now that they arrive as ", Arrival(list),
                     ". Their probes are ", ProbeOf(list, first[i]), " and ",
                     ProbeOf(list, found[i]),
                     ". The same query over the same cache must choose the "
                     "same blocks, whichever thread was faster"));
        }
      }
    }
  });

  check.Test("the smaller block", kLesson, [&] {
    Draw draw(check.Seed() + 2);
    for (const int count : {2, 5, 17, 65}) {
      ExpectRule(check, draw, Drawn(draw, count, {0.75f}));
      ExpectRule(check, draw, Drawn(draw, count, {0.75f, -1.5f}));
    }
  });

  check.Test("zeros", kLesson, [&] {
    Draw draw(check.Seed() + 3);
    for (const int count : {4, 9, 33}) {
      ExpectRule(check, draw, Drawn(draw, count, {-0.0f, 0.0f}));
    }
  });

  check.Test("a NaN first", kLesson, [&] {
    Draw draw(check.Seed() + 4);
    for (const int count : {6, 12, 40}) {
      ExpectRule(check, draw, Drawn(draw, count, {kNan, 9.5f, 1e30f}));
      ExpectRule(check, draw, Drawn(draw, count, {kNan, -kNan, -1.0f}));
    }
  });

  check.Test("a NaN and infinity", kLesson, [&] {
    Draw draw(check.Seed() + 5);
    ExpectRule(check, draw,
               Drawn(draw, 24, {kNan, kInfinity, -kInfinity, 2.0f}));
  });

  check.Test("other numbers than 0, 1, 2", kLesson, [&] {
    Draw draw(check.Seed() + 6);
    for (const int count : {5, 20}) {
      Candidates list = Drawn(draw, count, {4.0f, 1.0f});
      for (Candidate& c : list) c.block = 7 + 3 * c.block;
      ExpectRule(check, draw, list);
    }
  });

  check.Test("everything at once", kLesson, [&] {
    Draw draw(check.Seed() + 7);
    for (const int count : {18, 64, 200}) {
      ExpectRule(check, draw,
                 Drawn(draw, count,
                       {kNan, kInfinity, 3.0f, std::nextafter(3.0f, 4.0f), 0.0f,
                        -0.0f, -7.0f, -kInfinity}));
    }
  });
}

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  return kvlab::CodeCheckMain(argc, argv, kvlab::Tests);
}
