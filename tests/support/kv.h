/// \file
/// Keys and values of one KV head for tests of stages.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/attention/attention_stage.h"
#include "tests/support/compare.h"

namespace kvlab {

/// One GQA group's queries and one KV head of n tokens, laid out as the engine
/// lays them out, with rows padded by zeros.
class TestHead {
 public:
  TestHead(int n, int head_dim, int group, std::uint32_t seed,
           float sigma = 1.0f)
      : n_(n),
        d_(head_dim),
        group_(group),
        stride_((head_dim + kLanes - 1) / kLanes * kLanes),
        k_(std::size_t(n) * stride_),
        v_(k_.size()),
        q_(std::size_t(group) * QueryStride(head_dim)) {
    Fill(k_, stride_, n, seed, sigma);
    Fill(v_, stride_, n, seed + 1, 1.0f);
    Fill(q_, QueryStride(head_dim), group, seed + 2, sigma);
  }

  std::span<float> Key(int t) { return Row(k_, stride_, t); }
  std::span<float> Value(int t) { return Row(v_, stride_, t); }
  std::span<float> Query(int g) { return Row(q_, QueryStride(d_), g); }

  AttendInput Input() const {
    return {.layer = 1,
            .first_head = 2,
            .position = n_ - 1,
            .group = group_,
            .queries = q_,
            .kv = {.format = KvFormat::kF32,
                   .tokens = n_,
                   .head_dim = d_,
                   .stride = stride_,
                   .keys = k_.data(),
                   .values = v_.data()}};
  }

  /// The same group over the same keys and values in q8; the memory is the
  /// TestHead's, filled anew by every call.
  AttendInput Q8Input() {
    AttendInput input = Input();
    const int stride = QueryStride(d_);
    k_q8_ = Quantise(k_, stride);
    v_q8_ = Quantise(v_, stride);
    input.kv.format = KvFormat::kQ8;
    input.kv.stride = stride;
    input.kv.keys = input.kv.values = nullptr;
    input.kv.key_codes = k_q8_.codes.data();
    input.kv.value_codes = v_q8_.codes.data();
    input.kv.key_scales = k_q8_.scales.data();
    input.kv.value_scales = v_q8_.scales.data();
    return input;
  }

  /// softmax(q K / sqrt(d)) V in double, [group * head_dim].
  std::vector<double> Exact() {
    return Exact([&](int g, int i) { return double{Query(g)[i]}; },
                 [&](int t, int i) { return double{Key(t)[i]}; },
                 [&](int t, int i) { return double{Value(t)[i]}; });
  }

  /// The same in double over the numbers that q8 stands for: q, K and V as
  /// code * scale.
  std::vector<double> ExactOfQ8() {
    const int stride = QueryStride(d_);
    Q8Input();
    std::vector<float> q_scales;
    std::vector<std::int8_t> q_codes(q_.size());
    for (std::size_t i = 0; i < q_.size(); i += kQ8Group) {
      q_scales.push_back(
          PrimitivesFor(Isa::kScalar).quantise(&q_[i], kQ8Group, &q_codes[i]));
    }
    return Exact(
        [&](int g, int i) {
          const int at = g * stride + i;
          return q_codes[at] * double{q_scales[at / kQ8Group]};
        },
        [&](int t, int i) {
          return k_q8_.codes[t * stride + i] * double{k_q8_.scales[t]};
        },
        [&](int t, int i) {
          return v_q8_.codes[t * stride + i] * double{v_q8_.scales[t]};
        });
  }

 private:
  struct Q8Rows {
    std::vector<std::int8_t> codes;
    std::vector<float> scales;
  };

  Q8Rows Quantise(const std::vector<float>& x, int stride) const {
    Q8Rows rows{std::vector<std::int8_t>(std::size_t(n_) * stride),
                std::vector<float>(n_)};
    for (int t = 0; t < n_; ++t) {
      rows.scales[t] = PrimitivesFor(Isa::kScalar)
                           .quantise(&x[std::size_t(t) * stride_], d_,
                                     &rows.codes[std::size_t(t) * stride]);
    }
    return rows;
  }

  template <typename Q, typename K, typename V>
  std::vector<double> Exact(Q query, K key, V value) {
    std::vector<double> out;
    for (int g = 0; g < group_; ++g) {
      std::vector<double> p(n_);
      for (int t = 0; t < n_; ++t) {
        for (int i = 0; i < d_; ++i) p[t] += query(g, i) * key(t, i);
        p[t] /= std::sqrt(double(d_));
      }
      const double max = *std::ranges::max_element(p);
      double total = 0;
      for (double& x : p) total += x = std::exp(x - max);
      for (int i = 0; i < d_; ++i) {
        double sum = 0;
        for (int t = 0; t < n_; ++t) sum += p[t] * value(t, i);
        out.push_back(sum / total);
      }
    }
    return out;
  }

  std::span<float> Row(std::vector<float>& x, int stride, int row) {
    return {x.data() + std::size_t(row) * stride, std::size_t(d_)};
  }
  void Fill(std::vector<float>& x, int stride, int rows, std::uint32_t seed,
            float sigma) {
    const auto random = RandomFloats(std::size_t(rows) * d_, seed, sigma);
    for (int r = 0; r < rows; ++r) {
      std::copy_n(random.data() + std::size_t(r) * d_, d_,
                  x.data() + std::size_t(r) * stride);
    }
  }

  int n_, d_, group_, stride_;
  std::vector<float> k_, v_, q_;
  Q8Rows k_q8_, v_q8_;
};

}  // namespace kvlab
