#include "common/lab/synthetic_kv.h"

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

KvRing::KvRing(const AttentionShape& shape)
    : shape_(shape),
      cache_(CacheShape(shape), PrimitivesFor(BestIsa())),
      queries_(
          Gaussian(std::int64_t{shape.heads} * QueryStride(shape.head_dim))) {
  // Different tokens: a prime number, more than there are blocks of 32, so that
  // no two blocks are alike.
  constexpr int kSome = 4099;
  const std::int64_t row = std::int64_t{shape.kv_heads} * shape.head_dim;
  const std::vector<float> k = Gaussian(kSome * row);
  const std::vector<float> v = Gaussian(kSome * row);
  for (int layer = 0; layer < layers(); ++layer) {
    for (int t = 0; t < shape.tokens; t += kSome) {
      const int count = std::min(kSome, shape.tokens - t);
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

}  // namespace kvlab
