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

constexpr std::int64_t kFloatBytes = sizeof(float);

/// `tokens` rounded up to whole blocks.
std::int64_t WholeBlocks(std::int64_t tokens) {
  return (tokens + kTileTokens - 1) / kTileTokens * kTileTokens;
}

/// Rows of a plane: the capacity in whole blocks.
std::int64_t Rows(const KvCacheShape& shape) {
  return WholeBlocks(shape.capacity);
}

/// How many of the first `tokens` keys are kept packed.
std::int64_t PackedCount(const KvCacheShape& shape, std::int64_t tokens) {
  if (shape.packed_step == 0) return 0;
  return (tokens + shape.packed_step - 1) / shape.packed_step;
}

/// Rows of a packed plane.
std::int64_t PackedRows(const KvCacheShape& shape) {
  return WholeBlocks(PackedCount(shape, Rows(shape)));
}

/// Bytes of the codes or floats of `rows` rows.
std::int64_t RowBytes(const KvCacheShape& shape, std::int64_t rows) {
  return rows * shape.stride() *
         (shape.format == KvFormat::kF32 ? kFloatBytes : 1);
}

/// Bytes of the scales of `rows` rows.
std::int64_t ScaleBytes(const KvCacheShape& shape, std::int64_t rows) {
  return shape.format == KvFormat::kF32 ? 0 : rows * kFloatBytes;
}

/// Bytes of one plane, all rows of all blocks.
std::int64_t PlaneBytes(const KvCacheShape& shape) {
  return RowBytes(shape, Rows(shape));
}

/// Bytes of all planes of one layer and KV head.
std::int64_t HeadBytes(const KvCacheShape& shape) {
  const std::int64_t packed = PackedRows(shape);
  return 2 * (PlaneBytes(shape) + ScaleBytes(shape, Rows(shape))) +
         RowBytes(shape, packed) + ScaleBytes(shape, packed);
}

/// Bytes of a row that say something: codes or floats, and the scale.
std::int64_t UsedRowBytes(const KvCacheShape& shape) {
  return shape.format == KvFormat::kF32 ? shape.head_dim * kFloatBytes
                                        : shape.head_dim + kFloatBytes;
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
  const int multiple = format == KvFormat::kF32 ? kLanes : kQ8Group;
  return (head_dim + multiple - 1) / multiple * multiple;
}

std::int64_t KvCacheShape::bytes() const {
  return std::int64_t{layers} * kv_heads * HeadBytes(*this);
}

KvCache::KvCache(const KvCacheShape& shape, const Primitives& primitives)
    : shape_(shape),
      primitives_(primitives),
      tokens_(static_cast<std::size_t>(shape.layers), 0) {
  KVLAB_CHECK(shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0 &&
              shape.capacity > 0);
  const std::int64_t available = AvailableMemory();
  if (shape.bytes() > available) {
    Fail("KV cache: ", Count(shape.capacity, "token"),
         shape.capacity == 1 ? " needs " : " need ", HumanBytes(shape.bytes()),
         ", but only ", HumanBytes(available),
         " of memory are free; ask for a shorter context");
  }
  // Pages of an anonymous mapping are zero and cost nothing until written.
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(shape.bytes()),
           PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    Fail("KV cache: the system refused ", HumanBytes(shape.bytes()), " for ",
         Count(shape.capacity, "token"), "; ask for a shorter context");
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

void KvCache::Truncate(int tokens) {
  KVLAB_CHECK_LE(tokens, this->tokens());
  std::fill(tokens_.begin(), tokens_.end(), tokens);
}

KvCache::Planes KvCache::PlanesOf(int layer, int kv_head) const {
  const std::int64_t index = std::int64_t{layer} * shape_.kv_heads + kv_head;
  std::byte* keys = memory_ + index * HeadBytes(shape_);
  std::byte* values = keys + PlaneBytes(shape_);
  std::byte* key_scales = values + PlaneBytes(shape_);
  const std::int64_t scale_bytes = ScaleBytes(shape_, Rows(shape_));
  std::byte* packed = key_scales + 2 * scale_bytes;
  std::byte* packed_scales = packed + RowBytes(shape_, PackedRows(shape_));
  return {keys,
          values,
          reinterpret_cast<float*>(key_scales),
          reinterpret_cast<float*>(key_scales + scale_bytes),
          packed,
          reinterpret_cast<float*>(packed_scales)};
}

void KvCache::Store(std::span<const float> row, int token, std::byte* plane,
                    float* scales) const {
  const std::int64_t first = std::int64_t{token} * shape_.stride();
  if (shape_.format == KvFormat::kF32) {
    std::ranges::copy(row, reinterpret_cast<float*>(plane) + first);
    return;
  }
  auto* codes = reinterpret_cast<std::int8_t*>(plane) + first;
  scales[token] =
      primitives_.quantise(row.data(), static_cast<int>(row.size()), codes);
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
    const Planes planes = PlanesOf(layer, head);
    for (int i = 0; i < count; ++i) {
      const std::int64_t from = i * row + std::int64_t{head} * d;
      const int token = first + i;
      Store(k.subspan(from, d), token, planes.keys, planes.key_scales);
      if (shape_.packed_step > 0 && token % shape_.packed_step == 0) {
        Store(k.subspan(from, d), token / shape_.packed_step,
              planes.packed_keys, planes.packed_scales);
      }
      Store(v.subspan(from, d), token, planes.values, planes.value_scales);
    }
  }
  tokens_[layer] += count;
}

KvHeadView KvCache::View(int layer, int kv_head) const {
  const Planes planes = PlanesOf(layer, kv_head);
  KvHeadView view{.format = shape_.format,
                  .tokens = tokens_[layer],
                  .head_dim = shape_.head_dim,
                  .stride = shape_.stride()};
  if (shape_.format == KvFormat::kF32) {
    view.keys = reinterpret_cast<const float*>(planes.keys);
    view.values = reinterpret_cast<const float*>(planes.values);
  } else {
    view.key_codes = reinterpret_cast<const std::int8_t*>(planes.keys);
    view.value_codes = reinterpret_cast<const std::int8_t*>(planes.values);
    view.key_scales = planes.key_scales;
    view.value_scales = planes.value_scales;
  }
  if (shape_.packed_step > 0) {
    view.packed_step = shape_.packed_step;
    view.packed_keys = reinterpret_cast<const float*>(planes.packed_keys);
    view.packed_codes =
        reinterpret_cast<const std::int8_t*>(planes.packed_keys);
    view.packed_scales = planes.packed_scales;
  }
  return view;
}

std::int64_t KvCache::used_bytes() const {
  return 2 * std::int64_t{shape_.layers} * shape_.kv_heads * tokens() *
         UsedRowBytes(shape_);
}

std::int64_t KvCache::packed_bytes() const {
  return std::int64_t{shape_.layers} * shape_.kv_heads *
         PackedCount(shape_, tokens()) * UsedRowBytes(shape_);
}

}  // namespace kvlab
