/// \file
/// Exercise 9: the q8 single pass with one bug planted in one of its layers, as
/// four programs, --variant a to d. Which bug is in which, and in which layer,
/// is drawn with --seed.
///
/// Reading on spoils the exercise: first say of each program what is wrong with
/// it, from what it computes.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/lab/stage_main.h"
#include "day09_kv_q8/q8_single_pass.h"

namespace kvlab {
namespace {

enum class Bug { kRescale, kScale, kTail, kHead };
constexpr std::array kBugs = {Bug::kRescale, Bug::kScale, Bug::kTail,
                              Bug::kHead};
constexpr int kLayers = 3;  // of the model that ships with the course

/// What is wrong with one of the programs.
struct Planted {
  Bug bug;
  int layer;  ///< the only one that has the bug
  int head;   ///< kHead: whose query the whole group gets, 0 or 1
};

/// The draw for program 0 to 3. A generator and remainders of its numbers, and
/// no distribution of the library: so it is the same on every machine.
Planted Draw(std::uint64_t seed, int program) {
  std::mt19937_64 random(seed);
  std::array bugs = kBugs;
  for (std::size_t i = bugs.size() - 1; i > 0; --i) {
    std::swap(bugs[i], bugs[random() % (i + 1)]);
  }
  std::array<int, kBugs.size()> layers;
  for (int& layer : layers) layer = static_cast<int>(random() % kLayers);
  return {.bug = bugs[program],
          .layer = layers[program],
          .head = static_cast<int>(random() % 2)};
}

/// The table without what multiplies the sums at a rescale.
Primitives WithoutScale(Primitives primitives) {
  primitives.scale = [](float*, int, float) {};
  return primitives;
}

/// The right stage, given something wrong in one layer.
class PlantedBug final : public AttentionStage {
 public:
  PlantedBug(const StageSettings& settings, std::string id, Planted planted)
      : AttentionStage(settings.primitives),
        id_(std::move(id)),
        planted_(planted),
        tile_(settings.tile),
        without_scale_(WithoutScale(settings.primitives)),
        right_(settings.primitives, settings.tile),
        without_rescale_(without_scale_, settings.tile) {}
  std::string_view id() const override { return id_; }
  std::string_view not_materialised() const override {
    return right_.not_materialised();
  }

  void Attend(const AttendInput& input, std::span<float> out,
              Observer* observer) override {
    if (input.layer != planted_.layer) {
      right_.Attend(input, out, observer);
      return;
    }
    AttendInput wrong = input;
    std::vector<float> queries(input.queries.begin(), input.queries.end());
    wrong.queries = queries;
    switch (planted_.bug) {
      case Bug::kRescale:  // S is rescaled, acc is not
        without_rescale_.Attend(input, out, observer);
        return;
      case Bug::kScale:
        wrong.kv.key_scales = input.kv.value_scales;
        break;
      case Bug::kTail:
        wrong.kv.tokens -= input.kv.tokens % tile_;
        break;
      case Bug::kHead:
        for (int g = 0; g < input.group; ++g) {
          const int stride = QueryStride(input.kv.head_dim);
          std::copy_n(input.Query(planted_.head % input.group), stride,
                      &queries[g * stride]);
        }
        break;
    }
    right_.Attend(wrong, out, observer);
  }

 private:
  std::string id_;
  Planted planted_;
  int tile_;
  Primitives without_scale_;
  Q8SinglePass right_;
  Q8SinglePass without_rescale_;
};

}  // namespace
}  // namespace kvlab

int main(int argc, char** argv) {
  std::string variant;
  const CLI::Option* seed = nullptr;
  return kvlab::StageMain(
      argc, argv,
      {.name = "exercise_planted_bugs",
       .description =
           "Stage 3 with a planted bug: find it by what it computes.",
       .kv = kvlab::KvFormat::kQ8,
       .has_tile = true,
       .make_stage =
           [&](const kvlab::StageSettings& settings) {
             return std::make_unique<kvlab::PlantedBug>(
                 settings, "planted_" + variant,
                 kvlab::Draw(seed->as<std::uint64_t>(), variant[0] - 'a'));
           },
       .declare_options =
           [&](CLI::App& app) {
             app.add_option("--variant", variant, "Which bug: a, b, c or d")
                 ->required()
                 ->check(CLI::IsMember({"a", "b", "c", "d"}))
                 ->type_name("LETTER");
             seed = app.get_option("--seed");
           }});
}
