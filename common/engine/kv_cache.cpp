#include "common/engine/kv_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include "common/base/error.h"
#include "common/base/text.h"

namespace kvlab {
namespace {

/// Memory that a new allocation could use now, in bytes.
std::int64_t AvailableMemory() {
  std::ifstream meminfo("/proc/meminfo");  // Linux
  std::string key;
  std::int64_t kib = 0;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
}

/// Index of the first element that is not finite, -1 if all are.
std::int64_t FirstNonFinite(std::span<const float> x) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) return static_cast<std::int64_t>(i);
  }
  return -1;
}

}  // namespace

int KvCacheShape::stride() const {
  const int multiple = format == KvFormat::kF32 ? kLanes : kTileTokens;
  return (head_dim + multiple - 1) / multiple * multiple;
}

std::int64_t KvCacheShape::bytes() const {
  const std::int64_t tiles = (capacity + kTileTokens - 1) / kTileTokens;
  return 2 * std::int64_t{layers} * kv_heads * tiles * kTileTokens * stride() *
         static_cast<std::int64_t>(sizeof(float));
}

KvCache::KvCache(const KvCacheShape& shape)
    : shape_(shape), tokens_(static_cast<std::size_t>(shape.layers), 0) {
  KVLAB_CHECK(shape.format == KvFormat::kF32);
  KVLAB_CHECK(shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0 &&
              shape.capacity > 0);
  const std::int64_t available = AvailableMemory();
  if (shape.bytes() > available) {
    Fail("KV cache: ", shape.capacity, " tokens need ",
         HumanBytes(shape.bytes()), ", but only ", HumanBytes(available),
         " of memory are free; ask for a shorter context");
  }
  // Pages of an anonymous mapping are zero and cost nothing until written.
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(shape.bytes()),
           PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    Fail("KV cache: the system refused ", HumanBytes(shape.bytes()), " for ",
         shape.capacity, " tokens; ask for a shorter context");
  }
  memory_ = static_cast<std::byte*>(memory);
#ifdef MADV_HUGEPAGE
  // Streaming reads run faster over huge pages; a refusal does not matter.
  madvise(memory, static_cast<std::size_t>(shape.bytes()), MADV_HUGEPAGE);
#endif
}

KvCache::~KvCache() {
  munmap(memory_, static_cast<std::size_t>(shape_.bytes()));
}

void KvCache::Clear() { std::fill(tokens_.begin(), tokens_.end(), 0); }

float* KvCache::Plane(int layer, int kv_head, bool values) const {
  const std::int64_t planes = 2 * std::int64_t{shape_.layers} * shape_.kv_heads;
  const std::int64_t index =
      2 * (std::int64_t{layer} * shape_.kv_heads + kv_head) + (values ? 1 : 0);
  return reinterpret_cast<float*>(memory_ + shape_.bytes() / planes * index);
}

void KvCache::Append(int layer, std::span<const float> k,
                     std::span<const float> v, int count) {
  const int d = shape_.head_dim;
  const std::int64_t row = std::int64_t{shape_.kv_heads} * d;
  const int first = tokens_[layer];
  KVLAB_CHECK_LE(first + count, shape_.capacity);
  KVLAB_CHECK_EQ(static_cast<std::int64_t>(k.size()), row * count);
  KVLAB_CHECK_EQ(static_cast<std::int64_t>(v.size()), row * count);
  for (const std::span<const float> rows : {k, v}) {
    const std::int64_t bad = FirstNonFinite(rows);
    if (bad < 0) continue;
    Fail("KV cache: a ", rows.data() == k.data() ? "key" : "value",
         " is not finite (", rows[bad], ") in layer ", layer, ", KV head ",
         bad % row / d, ", position ", first + bad / row,
         "; the weights of the model are damaged or overflow float32");
  }
  for (int head = 0; head < shape_.kv_heads; ++head) {
    float* keys = Plane(layer, head, false);
    float* values = Plane(layer, head, true);
    for (int i = 0; i < count; ++i) {
      const std::int64_t from = i * row + std::int64_t{head} * d;
      const std::int64_t to = std::int64_t{first + i} * shape_.stride();
      std::copy_n(k.data() + from, d, keys + to);
      std::copy_n(v.data() + from, d, values + to);
    }
  }
  tokens_[layer] += count;
}

KvHeadView KvCache::View(int layer, int kv_head) const {
  return {.format = shape_.format,
          .tokens = tokens_[layer],
          .head_dim = shape_.head_dim,
          .stride = shape_.stride(),
          .keys = Plane(layer, kv_head, false),
          .values = Plane(layer, kv_head, true)};
}

std::int64_t KvCache::used_bytes() const {
  return 2 * std::int64_t{shape_.layers} * shape_.kv_heads * tokens() *
         shape_.head_dim * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace kvlab
