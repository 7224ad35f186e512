/// \file
/// A stage between the engine and another stage, to look at what passes.
#pragma once

#include <functional>
#include <span>
#include <utility>

#include "common/attention/attention_stage.h"

namespace kvlab {

/// Runs a stage and hands the input and output of every decode step of every
/// GQA group to `see`. Of one thread at a time only if the engine runs on one.
class CaptureStage final : public AttentionStage {
 public:
  using See = std::function<void(const AttendInput&, std::span<const float>)>;
  /// Keeps a reference to `stage`.
  CaptureStage(const Primitives& primitives, AttentionStage& stage, See see)
      : AttentionStage(primitives), stage_(stage), see_(std::move(see)) {}

  std::string_view id() const override { return stage_.id(); }
  std::string_view not_materialised() const override {
    return stage_.not_materialised();
  }
  void BeginPrompt() override { stage_.BeginPrompt(); }
  void Prefill(const PrefillInput& input, ImportanceSink* importance,
               const PrefillOutput& output) override {
    stage_.Prefill(input, importance, output);
  }
  void Attend(const AttendInput& input, std::span<float> out,
              Observer* observer) override {
    stage_.Attend(input, out, observer);
    see_(input, out);
  }

 private:
  AttentionStage& stage_;
  See see_;
};

}  // namespace kvlab
