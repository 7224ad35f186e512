/// \file
/// Counts what is allocated with new, to tell whether code keeps something of
/// size n. It replaces the global operator new, so one file of a program may
/// include it.
#pragma once

#include <malloc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace kvlab {

/// Bytes in use, and the most at any time since HeapPeak began.
struct HeapUse {
  std::int64_t now = 0;
  std::int64_t most = 0;
};
inline HeapUse heap_use;

/// The most bytes that were in use at once beyond those at its construction.
class HeapPeak {
 public:
  HeapPeak() : before_(heap_use.now) { heap_use.most = heap_use.now; }
  std::int64_t bytes() const { return heap_use.most - before_; }

 private:
  std::int64_t before_;
};

}  // namespace kvlab

// Not inlined: the compiler would see malloc and delete, and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  kvlab::HeapUse& use = kvlab::heap_use;
  use.now += static_cast<std::int64_t>(malloc_usable_size(memory));
  use.most = std::max(use.most, use.now);
  return memory;
}

[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  kvlab::heap_use.now -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}
