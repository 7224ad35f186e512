#include "common/lab/read_memory.h"

#include <cstring>

// The same loop for several instruction sets; the loader picks the best.
#if defined(__x86_64__)
#define KVLAB_WIDEST \
  __attribute__((target_clones("default", "avx2", "arch=skylake-avx512")))
#else
#define KVLAB_WIDEST
#endif

namespace kvlab {

KVLAB_WIDEST std::uint64_t ReadMemory(const void* data, std::int64_t bytes) {
  constexpr int kWords = 32;  // 256 bytes a step: four loads of 64
  const auto* p = static_cast<const unsigned char*>(data);
  std::uint64_t sums[kWords] = {};
  std::int64_t i = 0;
  for (; i + std::int64_t{sizeof(sums)} <= bytes; i += sizeof(sums)) {
    // Asks ahead as the kernels do: the limit is what reading can reach.
    for (int j = 0; j < 256; j += 64) __builtin_prefetch(p + i + 4096 + j);
    std::uint64_t words[kWords];
    std::memcpy(words, p + i, sizeof(words));
    for (int j = 0; j < kWords; ++j) sums[j] += words[j];
  }
  std::uint64_t sum = 0;
  for (; i < bytes; ++i) sum += p[i];
  for (const std::uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace kvlab
