/// \file
/// Writing safetensors files (dumps, test models).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/loader/output_file.h"
#include "common/loader/safetensors.h"

namespace kvlab {

/// A tensor to be written.
struct TensorToWrite {
  std::string name;  ///< UTF-8, not "__metadata__", unique in the file
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> bytes;  ///< row-major, little-endian elements
};

/// Writes `tensors` to `path`, in their order, whole or not at all (see
/// OutputFile). The same arguments give the same bytes: `__metadata__` comes
/// first with its keys sorted (and only if there are any), the header is padded
/// with spaces so that the data starts at a multiple of 8 bytes. Tensors follow
/// one another without gaps: give those with wider elements first if all are to
/// be aligned. Throws Error if the file cannot be written.
///
/// The second form leaves Commit() to the caller.
void WriteSafetensors(const std::filesystem::path& path,
                      const std::map<std::string, std::string>& metadata,
                      std::span<const TensorToWrite> tensors);
void WriteSafetensors(OutputFile& file,
                      const std::map<std::string, std::string>& metadata,
                      std::span<const TensorToWrite> tensors);

}  // namespace kvlab
