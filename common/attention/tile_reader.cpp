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

TileReader::TileReader(const Primitives& primitives, const KvHeadView& kv)
    : primitives_(primitives), kv_(kv), scale_(AttentionScale(kv.head_dim)) {}

void TileReader::Add(const float* query) {
  if (kv_.format == KvFormat::kF32) {
    queries_.push_back({query, nullptr});
  } else {
    // A vector that moves takes its elements along: the views stay good.
    quantised_.emplace_back(primitives_, query, kv_.stride);
    queries_q8_.push_back({quantised_.back().view(), nullptr});
  }
}

void TileReader::Dots(int t, int count, int step, int first,
                      std::span<float* const> dots, float scale, int next) {
  const auto heads = static_cast<int>(dots.size());
  if (kv_.format == KvFormat::kF32) {
    KvRows keys = kv_.Keys(t, count, step);
    if (next >= 0) keys.next = kv_.Key(next);
    for (int i = 0; i < heads; ++i) queries_[first + i].scores = dots[i];
    primitives_.dot_keys(&queries_[first], heads, keys, scale);
  } else {
    KvRowsQ8 keys = kv_.KeysQ8(t, count, step);
    if (next >= 0) {
      keys.next = kv_.KeyCodes(next);
      keys.next_scales = kv_.key_scales + next;
    }
    for (int i = 0; i < heads; ++i) queries_q8_[first + i].scores = dots[i];
    primitives_.dot_keys_q8(&queries_q8_[first], heads, keys, scale);
  }
}

void TileReader::AddValues(int t, int count, std::span<const TileSum> heads,
                           int next) const {
  const auto some = static_cast<int>(heads.size());
  if (kv_.format == KvFormat::kF32) {
    KvRows values = kv_.Values(t, count);
    if (next >= 0) values.next = kv_.Value(next);
    primitives_.accumulate_values(heads.data(), some, values);
  } else {
    KvRowsQ8 values = kv_.ValuesQ8(t, count);
    if (next >= 0) {
      values.next = kv_.ValueCodes(next);
      values.next_scales = kv_.value_scales + next;
    }
    primitives_.accumulate_values_q8(heads.data(), some, values);
  }
}

}  // namespace kvlab
