#include "common/attention/tile_reader.h"

#include "common/attention/attention_stage.h"

namespace kvlab {

QuantisedQuery::QuantisedQuery(const Primitives& primitives, const float* query,
                               int stride)
    : codes_(static_cast<std::size_t>(stride)),
      scales_(static_cast<std::size_t>(stride / kQ8Group)) {
  // [quantise_query]
  for (int i = 0; i < stride; i += kQ8Group) {
    scales_[i / kQ8Group] =
        primitives.quantise(query + i, kQ8Group, &codes_[i]);
  }
  // [quantise_query]
}

TileReader::TileReader(const Primitives& primitives, const KvHeadView& kv,
                       const float* query)
    : primitives_(primitives),
      kv_(kv),
      query_(query),
      scale_(AttentionScale(kv.head_dim)) {
  if (kv.format == KvFormat::kQ8) {
    quantised_.emplace_back(primitives, query, kv.stride);
  }
}

void TileReader::Scores(int t, int count, float* scores) const {
  if (kv_.format == KvFormat::kF32) {
    primitives_.dot_keys(query_, kv_.Key(t), count, kv_.stride, scale_, scores);
  } else {
    primitives_.dot_keys_q8(quantised_[0].view(), kv_.KeyCodes(t),
                            kv_.key_scales + t, count, kv_.stride, scale_,
                            scores);
  }
}

void TileReader::AddValues(int t, int count, const float* weights,
                           float* acc) const {
  if (kv_.format == KvFormat::kF32) {
    primitives_.accumulate_values(weights, kv_.Value(t), count, kv_.stride,
                                  acc);
  } else {
    primitives_.accumulate_values_q8(weights, kv_.ValueCodes(t),
                                     kv_.value_scales + t, count, kv_.stride,
                                     acc);
  }
}

}  // namespace kvlab
