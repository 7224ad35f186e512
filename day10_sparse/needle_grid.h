/// \file
/// The needle question many times over: how often it is answered, by length of
/// the context, depth of the needle, number of blocks, and what fills them.
///
/// A unit is one prompt: a context, a depth and a seed, from which haystack and
/// needle are drawn. It is read once, exactly; then every arm goes on from
/// there with every k.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/parallel.h"
#include "common/engine/generate.h"
#include "common/lab/model_prompt.h"
#include "day10_sparse/needle_arms.h"
#include "day10_sparse/sparse_topk.h"

namespace kvlab {

/// What a grid is made of.
struct GridSettings {
  std::vector<int> contexts = {512, 1024, 2048, 4096};
  std::vector<double> depths = {0, 0.25, 0.5, 0.75, 1};
  std::vector<int> ks = {1, 2, 4, 8, 16, 32};
  std::vector<BlockArm> arms = {kBlockArms.begin(), kBlockArms.end()};
  int seeds = 20;  ///< prompts of each context and depth
  /// The rest of the prompt; needle.seed is the first seed.
  PromptOptions prompt = {};
  bool own_needle = false;  ///< prompt.needle.needle is asked for everywhere
  KvFormat kv = KvFormat::kQ8;
  SparseOptions sparse = {};  ///< k aside
  std::string importance = "raw";
  int max_tokens = 40;

  /// All that the results depend on, for reports and to know them again.
  nlohmann::ordered_json Json(const Model& model) const;

  std::size_t units() const {
    return contexts.size() * depths.size() * static_cast<std::size_t>(seeds);
  }
};

/// More prompts than anyone waits for; their results fit in memory.
inline constexpr std::size_t kMaxGridUnits = 1'000'000;

/// Which prompt.
struct UnitId {
  int context = 0;
  double depth = 0;
  std::uint64_t seed = 0;

  auto operator<=>(const UnitId&) const = default;
};

/// What came of one prompt.
struct GridUnit {
  struct Answer {
    bool found = false;  ///< the value stands in the answer
    bool same = false;   ///< token for token that of exact attention
  };
  UnitId id;
  std::string needle;
  bool exact = false;            ///< exact attention finds the value
  std::vector<Answer> sparse{};  ///< [arms][ks]
};

/// All prompts, seed by seed, so that a part of them is a smaller grid.
std::vector<UnitId> GridUnits(const GridSettings& settings);

/// True if k blocks hold all that a run may ever cache: every arm reads all.
bool RanExact(const GridSettings& settings, int context, int k);

/// A random fact of the book, the same for the same seed.
std::string DrawNeedle(const FactBook& book, std::uint64_t seed);

/// Runs units on a model.
class GridRunner {
 public:
  /// Keeps references. Throws a usage Error on contexts that the model has no
  /// positions for.
  GridRunner(const GridSettings& settings, const Model& model,
             const Primitives& primitives, int threads);

  /// The prompt of a unit. Throws Error, naming the unit where it is to blame:
  /// not every length is there for every choice of facts.
  Prompt PromptOf(const UnitId& id) const;

  /// `check` is called often and may throw to stop.
  GridUnit Run(const UnitId& id, const std::function<void()>& check);

 private:
  const GridSettings& settings_;
  const Model& model_;
  const Primitives& primitives_;
  FactBook book_;
  ThreadPool pool_;
  Transformer transformer_;
  KvCache cache_;
};

}  // namespace kvlab
