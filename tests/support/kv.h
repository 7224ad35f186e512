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

  /// softmax(q K / sqrt(d)) V in double, [group * head_dim].
  std::vector<double> Exact() {
    std::vector<double> out;
    for (int g = 0; g < group_; ++g) {
      std::vector<double> p(n_);
      for (int t = 0; t < n_; ++t) {
        for (int i = 0; i < d_; ++i) p[t] += double{Query(g)[i]} * Key(t)[i];
        p[t] /= std::sqrt(double(d_));
      }
      const double max = *std::ranges::max_element(p);
      double total = 0;
      for (double& x : p) total += x = std::exp(x - max);
      for (int i = 0; i < d_; ++i) {
        double sum = 0;
        for (int t = 0; t < n_; ++t) sum += p[t] * Value(t)[i];
        out.push_back(sum / total);
      }
    }
    return out;
  }

 private:
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
};

}  // namespace kvlab
