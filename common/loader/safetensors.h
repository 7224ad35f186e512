/// \file
/// safetensors files, read through a memory map.
///
/// A file is `[8 bytes: N][N bytes: JSON header][data]`, all little-endian. The
/// header maps each tensor's name to dtype, shape and `data_offsets` [begin,
/// end) in the data section. Every rule of the format is checked before a byte
/// of a tensor can be seen: the tensors, ordered by offset, must cover the data
/// section without a hole or an overlap, and each must be as long as its dtype
/// and shape say. Duplicate keys, which the reference library lets pass, are
/// refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// Element types of the format. Those of less than a byte (F4, F6_*) are
/// refused when a file is opened: no program here could show or use them.
enum class Dtype {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

/// The dtype's name in a header, e.g. "BF16".
std::string_view DtypeName(Dtype dtype);

/// The dtype of that name; names are case-sensitive.
std::optional<Dtype> DtypeFromName(std::string_view name);

/// Bits of one element.
int DtypeBits(Dtype dtype);

/// "[4096, 2560]"; "[]" for a scalar.
std::string ShapeText(std::span<const std::uint64_t> shape);

/// Bits of a tensor, or nothing if a product on the way is over 2^64 - 1.
std::optional<std::uint64_t> TensorBits(Dtype dtype,
                                        std::span<const std::uint64_t> shape);

/// One tensor of an open file.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset = 0;  ///< of its first byte in the data section
  /// Row-major, little-endian elements inside the map. They may start at any
  /// address: the format does not promise alignment.
  std::span<const std::byte> bytes;

  /// Product of the shape (1 for a scalar).
  std::uint64_t Elements() const;
};

/// An open, checked, memory-mapped file. The spans of its tensors stay valid
/// as long as this object lives, also when it is moved.
class SafetensorsFile {
 public:
  /// Opens `path` and checks it. Throws Error naming the file, the tensor, what
  /// was expected and what was found; a file that ends too early is called an
  /// "incomplete file".
  static SafetensorsFile Open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// In the order in which they lie in the file.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// nullptr if the file has no tensor of that name.
  const TensorInfo* Find(std::string_view name) const;
  /// The strings of `__metadata__`.
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }
  /// Position of the data section in the file: 8 + N bytes.
  std::uint64_t data_start() const { return data_start_; }
  /// Length of the whole file in bytes.
  std::uint64_t file_bytes() const { return file_bytes_; }

 private:
  SafetensorsFile() = default;
  void ReadHeader(std::string_view header, std::span<const std::byte> data);

  std::filesystem::path path_;
  std::shared_ptr<const void> map_;  // unmaps when the last owner goes
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
  std::uint64_t data_start_ = 0;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace kvlab
