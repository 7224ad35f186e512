#include "day09_kv_q8/accuracy_inputs.h"

#include <algorithm>
#include <cmath>

#include "common/attention/attention_stage.h"
#include "common/base/deterministic_math.h"
#include "common/base/error.h"

namespace kvlab {

float GaussianSource::Next() {
  if (spare_) {
    const float x = *spare_;
    spare_.reset();
    return x;
  }
  // 53 random bits each: u in (0, 1], turn in [0, 1).
  const double u = static_cast<double>((random_() >> 11) + 1) * 0x1p-53;
  const double turn = static_cast<double>(random_() >> 11) * 0x1p-53;
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = std::sqrt(-2 * LogDouble(u));  // correctly rounded
  const auto angle = static_cast<float>(kTwoPi * turn);
  spare_ = static_cast<float>(radius * Sin(angle));
  return static_cast<float>(radius * Cos(angle));
}

std::string_view InputKindName(InputKind kind) {
  switch (kind) {
    case InputKind::kGaussian:
      return "gaussian";
    case InputKind::kOutlier10:
      return "outlier 10";
    case InputKind::kOutlier50:
      return "outlier 50";
    case InputKind::kSink:
      return "sink";
    case InputKind::kZeroKeys:
      return "zero K";
    case InputKind::kZeroQuery:
      return "zero q";
    case InputKind::kZeroValues:
      return "zero V";
    case InputKind::kZeroAll:
      return "zero all";
  }
  return "";
}

AccuracyInput::AccuracyInput(int n, int head_dim, GaussianSource& source)
    : n_(n),
      d_(head_dim),
      stride_((head_dim + kLanes - 1) / kLanes * kLanes),
      q_(static_cast<std::size_t>(head_dim)),
      k_(static_cast<std::size_t>(n) * stride_),
      v_(k_.size()) {
  KVLAB_CHECK(n >= 1 && head_dim >= 1);
  const auto draw = [&](float* row) {
    for (int i = 0; i < d_; ++i) row[i] = source.Next();
  };
  draw(q_.data());
  for (int t = 0; t < n_; ++t) draw(&k_[static_cast<std::size_t>(t) * stride_]);
  for (int t = 0; t < n_; ++t) draw(&v_[static_cast<std::size_t>(t) * stride_]);
}

AccuracyInput AccuracyInput::As(InputKind kind) const {
  AccuracyInput input = *this;
  const auto set_outliers = [&](float sigmas) {
    for (int t = 0; t < n_; ++t) {
      float* key = &input.k_[static_cast<std::size_t>(t) * stride_];
      key[d_ / 4] = sigmas;
      key[d_ * 3 / 4] = -sigmas;
    }
  };
  const auto zero = [](std::vector<float>& x) { std::ranges::fill(x, 0.0f); };
  switch (kind) {
    case InputKind::kGaussian:
      break;
    case InputKind::kOutlier10:
      set_outliers(10);
      break;
    case InputKind::kOutlier50:
      set_outliers(50);
      break;
    case InputKind::kSink: {
      // The other scores have sigma 1, so their exp() add up to about n
      // exp(1/2); a score of ln(n) + 3 weighs exp(3) / (exp(3) + exp(1/2)).
      double square = 0;
      for (const float x : q_) square += double{x} * x;
      const double score = LogDouble(n_) + 3;
      const double factor = score / (square * AttentionScale(d_));
      for (int i = 0; i < d_; ++i) {
        input.k_[i] = static_cast<float>(factor * q_[i]);
      }
      break;
    }
    case InputKind::kZeroKeys:
      zero(input.k_);
      break;
    case InputKind::kZeroQuery:
      zero(input.q_);
      break;
    case InputKind::kZeroValues:
      zero(input.v_);
      break;
    case InputKind::kZeroAll:
      zero(input.q_);
      zero(input.k_);
      zero(input.v_);
      break;
  }
  return input;
}

KvHeadView AccuracyInput::kv() const {
  return {.format = KvFormat::kF32,
          .tokens = n_,
          .head_dim = d_,
          .stride = stride_,
          .keys = k_.data(),
          .values = v_.data()};
}

}  // namespace kvlab
