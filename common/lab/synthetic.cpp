#include "common/lab/synthetic.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <string>

#include "common/attention/attention_stage.h"
#include "common/base/error.h"
#include "common/lab/read_memory.h"

namespace kvlab {
namespace {

constexpr std::int64_t kFloatBytes = sizeof(float);

KvCacheShape CacheShape(const AttentionShape& shape) {
  KvCacheShape cache{.format = shape.format,
                     .layers = 1,
                     .kv_heads = shape.kv_heads,
                     .head_dim = shape.head_dim,
                     .capacity = shape.tokens,
                     .packed_step = shape.packed_step};
  cache.layers = RingSize(cache.bytes(), shape.cold);
  return cache;
}

}  // namespace

std::int64_t LastLevelCache() {
  std::int64_t largest = 0;
  for (int level = 0; level < 8; ++level) {  // Linux
    std::ifstream file(
        StrCat("/sys/devices/system/cpu/cpu0/cache/index", level, "/size"));
    std::int64_t kib = 0;
    if (file >> kib) largest = std::max(largest, kib * 1024);
  }
  return largest > 0 ? largest : std::int64_t{32} << 20;
}

int RingSize(std::int64_t bytes, bool cold) {
  if (!cold) return 1;
  // Together several times the last cache, and at least two, so that one is
  // read while the other is cold.
  return static_cast<int>(
      std::max<std::int64_t>(2, 4 * LastLevelCache() / bytes + 1));
}

std::vector<float> Gaussian(std::int64_t n) {
  std::mt19937_64 random(9);  // only speed is measured: any numbers do
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& element : x) element = normal(random);
  return x;
}

KvRing::KvRing(const AttentionShape& shape, const std::function<void()>& check)
    : shape_(shape),
      cache_(CacheShape(shape), PrimitivesFor(BestIsa())),
      queries_(
          Gaussian(std::int64_t{shape.heads} * QueryStride(shape.head_dim))) {
  // Different tokens: a prime number, more than there are blocks of 32, so that
  // no two blocks are alike; fewer where rows are long, since this is memory on
  // top of the cache.
  constexpr std::int64_t kMost = 4099, kLeast = 37, kFloats = 16'000'000;
  const std::int64_t row = std::int64_t{shape.kv_heads} * shape.head_dim;
  const auto some = static_cast<int>(std::clamp(kFloats / row, kLeast, kMost));
  const std::vector<float> k = Gaussian(some * row);
  const std::vector<float> v = Gaussian(some * row);
  for (int layer = 0; layer < layers(); ++layer) {
    for (int t = 0; t < shape.tokens; t += some) {
      check();
      const int count = std::min(some, shape.tokens - t);
      cache_.Append(layer, std::span(k).first(count * row),
                    std::span(v).first(count * row), count);
    }
  }
}

KvHeadView KvRing::View(std::int64_t turn, int kv_head) const {
  return cache_.View(static_cast<int>(turn % layers()), kv_head);
}

void KvRing::Read(ThreadPool& pool, std::int64_t turn) const {
  pool.ParallelFor(
      shape_.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
        std::uint64_t sum = 0;
        for (auto head = static_cast<int>(begin); head < end; ++head) {
          const KvHeadView kv = View(turn, head);
          const std::int64_t elements = std::int64_t{kv.tokens} * kv.stride;
          if (kv.format == KvFormat::kF32) {
            sum += ReadMemory(kv.keys, elements * kFloatBytes);
            sum += ReadMemory(kv.values, elements * kFloatBytes);
          } else {
            sum += ReadMemory(kv.key_codes, elements);
            sum += ReadMemory(kv.value_codes, elements);
            sum += ReadMemory(kv.key_scales, kv.tokens * kFloatBytes);
            sum += ReadMemory(kv.value_scales, kv.tokens * kFloatBytes);
          }
        }
        read_ += sum;
      });
}

WeightRing::WeightRing(const Shapes& shapes, bool cold) : shapes_(shapes) {
  for (const auto& [rows, cols] : shapes) set_elements_ += rows * cols;
  sets_ = RingSize(bytes(), cold);
  elements_.resize(static_cast<std::size_t>(set_elements_ * sets_));
  std::mt19937_64 random(10);
  for (std::size_t i = 0; i < elements_.size(); i += 4) {
    std::uint64_t bits = random();
    for (std::size_t j = i; j < std::min(i + 4, elements_.size()); ++j) {
      // bf16 between 2^-7 and 2^-5, either sign.
      elements_[j] = static_cast<std::uint16_t>((bits & 0x80FFu) | 0x3C00u);
      bits >>= 16;
    }
  }
}

WeightMatrix WeightRing::Matrix(std::int64_t turn, std::size_t i) const {
  const std::uint16_t* data = elements_.data() + turn % sets_ * set_elements_;
  for (std::size_t j = 0; j < i; ++j) {
    data += shapes_[j].first * shapes_[j].second;
  }
  return {.data = data,
          .type = WeightType::kBF16,
          .rows = shapes_[i].first,
          .cols = shapes_[i].second};
}

void WeightRing::Read(ThreadPool& pool, std::int64_t turn) const {
  const auto* data = static_cast<const std::byte*>(Matrix(turn, 0).data);
  pool.ParallelFor(bytes(), bytes() / pool.threads() + 1,
                   [&](std::int64_t begin, std::int64_t end) {
                     read_ += ReadMemory(data + begin, end - begin);
                   });
}

WeightRing::Shapes LayerMatrices(const ModelShape& m) {
  const std::int64_t q = std::int64_t{m.heads} * m.head_dim;
  const std::int64_t kv = std::int64_t{m.kv_heads} * m.head_dim;
  return {{q, m.hidden},
          {kv, m.hidden},
          {kv, m.hidden},
          {m.hidden, q},
          {m.feed_forward, m.hidden},
          {m.feed_forward, m.hidden},
          {m.hidden, m.feed_forward}};
}

WeightRing::Shapes OutputMatrix(const ModelShape& m) {
  return {{m.vocabulary, m.hidden}};
}

}  // namespace kvlab
