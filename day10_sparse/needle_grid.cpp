#include "day10_sparse/needle_grid.h"

#include <algorithm>
#include <random>
#include <string_view>

#include "common/base/error.h"
#include "day09_kv_q8/three_pass.h"
#include "day09_kv_q8/two_pass.h"

namespace kvlab {
namespace {

int Longest(const GridSettings& settings) {
  return *std::ranges::max_element(settings.contexts);
}

/// The shape of a cache for the longest context, refused before it is made if
/// the model has no positions for it.
KvCacheShape CacheShapeOf(const GridSettings& settings, const Model& model,
                          const Transformer& transformer,
                          const Primitives& primitives) {
  const int capacity = Longest(settings) + settings.max_tokens;
  if (capacity > model.config.max_position_embeddings) {
    FailUsage("--contexts ", Longest(settings), " and --max-tokens ",
              settings.max_tokens, ": ", Printable(ModelName(model)),
              " has positions for ", model.config.max_position_embeddings,
              " tokens; ask for fewer");
  }
  KvCacheShape shape = transformer.CacheShape(settings.kv, capacity);
  shape.packed_step = SparseTopK(primitives, settings.sparse).packed_step();
  return shape;
}

std::unique_ptr<AttentionStage> ExactStage(KvFormat kv,
                                           const Primitives& primitives) {
  if (kv == KvFormat::kF32) return std::make_unique<ThreePass>(primitives);
  return std::make_unique<TwoPass>(primitives, false);
}

}  // namespace

nlohmann::ordered_json GridSettings::Json(const Model& model) const {
  nlohmann::ordered_json json;
  json["version"] = Version();
  json["model"] = ModelSummary(model);
  json["contexts"] = contexts;
  json["depths"] = depths;
  json["ks"] = ks;
  json["arms"] = nlohmann::ordered_json::array();
  for (const BlockArm arm : arms) json["arms"].push_back(BlockArmName(arm));
  json["seeds"] = seeds;
  json["first_seed"] = prompt.needle.seed;
  json["needle"] = own_needle ? nlohmann::ordered_json(prompt.needle.needle)
                              : nlohmann::ordered_json();
  json["question"] = prompt.needle.question;
  json["facts"] = prompt.needle.facts;
  json["raw"] = prompt.raw;
  json["thinking"] = prompt.thinking;
  json["max_tokens"] = max_tokens;
  json["kv"] = kv == KvFormat::kQ8 ? "q8" : "f32";
  json["block_size"] = sparse.block_tokens;
  json["n_probe"] = sparse.n_probe;
  json["importance"] = importance;
  return json;
}

std::vector<UnitId> GridUnits(const GridSettings& settings) {
  std::vector<UnitId> units;
  for (int i = 0; i < settings.seeds; ++i) {
    for (const int context : settings.contexts) {
      for (const double depth : settings.depths) {
        units.push_back(
            {context, depth,
             settings.prompt.needle.seed + static_cast<std::uint64_t>(i)});
      }
    }
  }
  return units;
}

bool RanExact(const GridSettings& settings, int context, int k) {
  return k >= BlockCount(context + settings.max_tokens,
                         settings.sparse.block_tokens);
}

std::string DrawNeedle(const FactBook& book, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  random.discard(1);  // the haystack begins with the first number of this seed
  const auto pick = [&](const auto& list) -> const auto& {
    return list[random() % list.size()];
  };
  Fact fact;
  fact.attribute = &pick(book.attributes());
  fact.name = pick(book.names());
  fact.value = pick(fact.attribute->values);
  return fact.Text();
}

GridRunner::GridRunner(const GridSettings& settings, const Model& model,
                       const Primitives& primitives, int threads)
    : settings_(settings),
      model_(model),
      primitives_(primitives),
      book_(FactBook::LoadShipped()),
      pool_(threads),
      transformer_(model.config, model.weights, primitives, pool_),
      cache_(CacheShapeOf(settings, model, transformer_, primitives),
             primitives) {
  if (Longest(settings) > model.config.trained_context) {
    Warn(StrCat("the model was trained on at most ",
                model.config.trained_context,
                " tokens: expect wrong answers beyond"));
  }
}

Prompt GridRunner::PromptOf(const UnitId& id) const {
  PromptOptions options = settings_.prompt;
  options.needle.context = id.context;
  options.needle.depth = id.depth;
  options.needle.seed = id.seed;
  if (!settings_.own_needle) {
    options.needle.needle = DrawNeedle(book_, id.seed);
  }
  try {
    return BuildPrompt(model_, options);
  } catch (const Error& error) {
    // A grid has no --context; which of its many prompts it was, must be told.
    const std::string_view message = error.what();
    const std::string context = StrCat("--context ", id.context, ": ");
    if (!message.starts_with(context)) throw;
    throw Error(
        StrCat("--contexts ", id.context, " with depth ", id.depth,
               " and seed ", id.seed, ": ", message.substr(context.size())),
        error.exit_code());
  }
}

GridUnit GridRunner::Run(const UnitId& id, const std::function<void()>& check) {
  const Prompt prompt = PromptOf(id);
  GridUnit unit{.id = id, .needle = prompt.needle->needle};

  GenerateOptions generate{
      .max_tokens = settings_.max_tokens,
      .stop_ids = model_.eos_ids,
      .record_importance = settings_.sparse.importance != ImportanceUse::kOff};
  generate.progress = [&](double) { check(); };
  generate.on_token = [&](int) { check(); };
  const auto exact_stage = ExactStage(settings_.kv, primitives_);
  const ReadPrompt read =
      Prefill(transformer_, cache_, *exact_stage, prompt.tokens, generate);
  const auto answer = [&](AttentionStage& stage) {
    stage.BeginPrompt();
    return Continue(transformer_, cache_, stage, read, generate);
  };
  const auto found = [&](const Generation& g) {
    return ContainsWord(model_.tokenizer.Decode(g.tokens, true),
                        prompt.needle->expected);
  };
  const Generation exact = answer(*exact_stage);
  unit.exact = found(exact);
  for (const BlockArm arm : settings_.arms) {
    for (const int k : settings_.ks) {
      SparseOptions sparse = settings_.sparse;
      sparse.k = k;
      SparseTopK stage(primitives_, sparse, MakeArm(arm, id.seed));
      const Generation g = answer(stage);
      unit.sparse.push_back(
          {found(g), g.tokens == exact.tokens && g.stopped == exact.stopped});
    }
  }
  return unit;
}

}  // namespace kvlab
