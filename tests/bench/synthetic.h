/// \file
/// Weights of random numbers, in the shapes of real models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/parallel.h"
#include "common/base/weight_matrix.h"
#include "common/lab/synthetic_kv.h"

namespace kvlab::bench {

/// The linear layers of a model.
struct ModelShape {
  std::string name;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int feed_forward = 0;
  int vocabulary = 0;
};

/// Random bf16 weights of one or more matrices, in sets that take turns as the
/// layers of KvRing do.
class WeightRing {
 public:
  /// [rows, cols] of each matrix of a set.
  using Shapes = std::vector<std::pair<std::int64_t, std::int64_t>>;

  WeightRing(const Shapes& shapes, bool cold);

  /// Matrix `i` of the set whose turn it is.
  WeightMatrix Matrix(std::int64_t turn, std::size_t i) const;
  const Shapes& shapes() const { return shapes_; }
  int sets() const { return sets_; }
  std::int64_t bytes() const { return set_elements_ * 2; }  ///< of one set
  /// Multiplications and additions of one set for one token.
  std::int64_t flops() const { return set_elements_ * 2; }
  /// Reads the bytes of turn `turn`, shared out to the threads.
  void Read(ThreadPool& pool, std::int64_t turn) const;

 private:
  Shapes shapes_;
  int sets_ = 1;
  std::int64_t set_elements_ = 0;
  std::vector<std::uint16_t> elements_;
};

/// The matrices of one transformer layer, and of the output (lm_head).
WeightRing::Shapes LayerMatrices(const ModelShape& model);
WeightRing::Shapes OutputMatrix(const ModelShape& model);

}  // namespace kvlab::bench
