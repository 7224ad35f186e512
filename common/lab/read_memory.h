/// \file
/// The measure that every kernel is held against: reading memory, nothing else.
#pragma once

#include <cstdint>

namespace kvlab {

/// Reads `bytes` bytes from the first to the last with wide loads and returns
/// something that depends on all of them, so that no load can be left out.
std::uint64_t ReadMemory(const void* data, std::int64_t bytes);

}  // namespace kvlab
