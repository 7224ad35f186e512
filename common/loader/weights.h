/// \file
/// The weights of a decoder, as views into the memory-mapped model file.
#pragma once

#include <vector>

#include "common/base/weight_matrix.h"

namespace kvlab {

/// One decoder layer. Matrices stay in the file; the few short vectors (norm
/// gains) are widened to f32 once.
struct LayerWeights {
  std::vector<float> input_norm;  ///< [hidden]
  WeightMatrix q;                 ///< [heads * head_dim, hidden]
  WeightMatrix k;                 ///< [kv_heads * head_dim, hidden]
  WeightMatrix v;                 ///< [kv_heads * head_dim, hidden]
  WeightMatrix o;                 ///< [hidden, heads * head_dim]
  std::vector<float> q_norm;      ///< [head_dim], empty without qk-norm
  std::vector<float> k_norm;      ///< [head_dim], empty without qk-norm
  std::vector<float> post_attention_norm;  ///< [hidden]
  WeightMatrix gate;                       ///< [intermediate, hidden]
  WeightMatrix up;                         ///< [intermediate, hidden]
  WeightMatrix down;                       ///< [hidden, intermediate]
};

/// A whole decoder.
struct Weights {
  WeightMatrix embedding;  ///< [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  ///< [hidden]
  WeightMatrix lm_head;  ///< [vocab, hidden]; the embedding itself when tied
};

}  // namespace kvlab
