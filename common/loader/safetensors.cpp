#include "common/loader/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/loader/json.h"

namespace kvlab {
namespace {

// Elements are used where they lie in the file.
static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian");

/// Limit of the reference implementation, in bytes.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  int bits;
};

constexpr std::array kDtypes = {
    DtypeRow{Dtype::kBool, "BOOL", 8},
    DtypeRow{Dtype::kF4, "F4", 4},
    DtypeRow{Dtype::kF6E2M3, "F6_E2M3", 6},
    DtypeRow{Dtype::kF6E3M2, "F6_E3M2", 6},
    DtypeRow{Dtype::kU8, "U8", 8},
    DtypeRow{Dtype::kI8, "I8", 8},
    DtypeRow{Dtype::kF8E5M2, "F8_E5M2", 8},
    DtypeRow{Dtype::kF8E4M3, "F8_E4M3", 8},
    DtypeRow{Dtype::kF8E8M0, "F8_E8M0", 8},
    DtypeRow{Dtype::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    DtypeRow{Dtype::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    DtypeRow{Dtype::kI16, "I16", 16},
    DtypeRow{Dtype::kU16, "U16", 16},
    DtypeRow{Dtype::kF16, "F16", 16},
    DtypeRow{Dtype::kBF16, "BF16", 16},
    DtypeRow{Dtype::kI32, "I32", 32},
    DtypeRow{Dtype::kU32, "U32", 32},
    DtypeRow{Dtype::kF32, "F32", 32},
    DtypeRow{Dtype::kC64, "C64", 64},
    DtypeRow{Dtype::kF64, "F64", 64},
    DtypeRow{Dtype::kI64, "I64", 64},
    DtypeRow{Dtype::kU64, "U64", 64},
};

const DtypeRow& Row(Dtype dtype) {
  const auto row =
      std::find_if(kDtypes.begin(), kDtypes.end(),
                   [&](const auto& r) { return r.dtype == dtype; });
  KVLAB_CHECK(row != kDtypes.end());
  return *row;
}

/// The product, or nothing if it is over 2^64 - 1.
std::optional<std::uint64_t> CheckedProduct(std::uint64_t a, std::uint64_t b) {
  if (b != 0 && a > std::numeric_limits<std::uint64_t>::max() / b) {
    return std::nullopt;
  }
  return a * b;
}

struct Mapping {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

/// Maps a whole regular file, read-only. An empty file gives an empty span.
Mapping MapFile(const std::filesystem::path& path) {
  CheckRegularFile(path);
  const auto fail = [&] {
    Fail(PathText(path),
         ": cannot be read: ", std::generic_category().message(errno));
  };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail();
  struct stat status {};
  if (::fstat(fd, &status) != 0 || status.st_size == 0) {
    ::close(fd);
    return {};
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_error = errno;
  ::close(fd);  // the map keeps the file open
  if (start == MAP_FAILED) {
    errno = map_error;
    fail();
  }
  return {std::shared_ptr<const void>(
              start,
              [size](const void* p) { ::munmap(const_cast<void*>(p), size); }),
          {static_cast<const std::byte*>(start), size}};
}

/// The header as it stands in the file, its length checked against the file
/// before anything is allocated.
std::string_view HeaderText(std::span<const std::byte> file,
                            std::string_view where) {
  if (file.size() < 8) {
    Fail(where, ": incomplete file: ", file.size(),
         " bytes, a safetensors file has at least 8; download it again");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()),
                              file.size());
  // What a checkout without Git LFS leaves in place of a large file. Its text
  // read as a length would give a message that helps nobody.
  if (text.starts_with("version https://git-lfs")) {
    Fail(where,
         ": a Git LFS pointer, not the tensors themselves; run "
         "\"git lfs pull\" in the model's directory");
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  if (length > kMaxHeaderBytes) {
    Fail(where, ": header length ", length, " is over the format's limit of ",
         kMaxHeaderBytes, " bytes; is this a safetensors file?");
  }
  const std::uint64_t rest = file.size() - 8;
  if (length > rest) {
    Fail(where, ": incomplete file: the header has ", length,
         " bytes, but only ", rest, " follow its length; download it again");
  }
  const std::string_view header =
      text.substr(8, static_cast<std::size_t>(length));
  if (!header.starts_with('{')) {
    Fail(where, ": header: expected '{' as its first byte, found ",
         header.empty() ? "an empty header"
                        : StrCat('"', Printable(header.substr(0, 8)), '"'),
         "; is this a safetensors file?");
  }
  return header;
}

/// Reads the entries of one tensor out of the header.
class EntryReader {
 public:
  EntryReader(const Json& entry, std::string_view where,
              const std::string& name)
      : entry_(entry),
        label_(StrCat(where, ": tensor \"", Printable(name), '"')) {
    if (!entry.is_object()) {
      Fail(label_,
           ": expected {\"dtype\", \"shape\", \"data_offsets\"}, found ",
           JsonText(entry));
    }
  }

  Dtype ReadDtype() const {
    const Json& value = Field("dtype");
    const auto dtype = value.is_string()
                           ? DtypeFromName(value.get_ref<const std::string&>())
                           : std::nullopt;
    if (!dtype) {
      Fail(label_,
           ": dtype: expected one of the format's types (F32, BF16, "
           "...), found ",
           JsonText(value));
    }
    if (DtypeBits(*dtype) % 8 != 0) {
      Fail(label_, ": dtype ", DtypeName(*dtype), " has ", DtypeBits(*dtype),
           " bits; elements smaller than a byte are not supported");
    }
    return *dtype;
  }

  /// A list of integers of 0 to 2^64 - 1.
  std::vector<std::uint64_t> ReadNumbers(const char* field) const {
    const Json& list = Field(field);
    if (!list.is_array()) Refuse(field, list);
    std::vector<std::uint64_t> numbers;
    for (const Json& item : list) {
      if (!item.is_number_unsigned()) Refuse(field, list);
      numbers.push_back(item.get<std::uint64_t>());
    }
    return numbers;
  }

  const std::string& label() const { return label_; }

 private:
  const Json& Field(const char* field) const {
    const auto found = entry_.find(field);
    if (found == entry_.end()) Fail(label_, ": ", field, " is missing");
    return *found;
  }

  [[noreturn]] void Refuse(const char* field, const Json& found) const {
    Fail(label_, ": ", field,
         ": expected a list of integers of 0 to 2^64 - 1, "
         "found ",
         JsonText(found));
  }

  const Json& entry_;
  std::string label_;
};

/// One tensor as the header describes it, its place in the data not yet checked
/// against the other tensors.
struct Entry {
  TensorInfo info;
  std::uint64_t end = 0;
};

Entry ReadEntry(const std::string& name, const Json& json,
                std::string_view where) {
  const EntryReader reader(json, where, name);
  Entry entry;
  entry.info.name = name;
  entry.info.dtype = reader.ReadDtype();
  entry.info.shape = reader.ReadNumbers("shape");
  const std::vector<std::uint64_t> offsets = reader.ReadNumbers("data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    Fail(reader.label(),
         ": data_offsets: expected [begin, end] with begin <= "
         "end, found ",
         ShapeText(offsets));
  }
  entry.info.offset = offsets[0];
  entry.end = offsets[1];
  const auto bits = TensorBits(entry.info.dtype, entry.info.shape);
  if (!bits) {
    Fail(reader.label(), ": shape ", ShapeText(entry.info.shape),
         ": its size is over 2^64 - 1 bits");
  }
  if (entry.end - entry.info.offset != *bits / 8) {
    Fail(reader.label(), ": expected ", *bits / 8, " bytes for ",
         DtypeName(entry.info.dtype), " ", ShapeText(entry.info.shape),
         ", found data_offsets ", ShapeText(offsets), ", which are ",
         entry.end - entry.info.offset, " bytes");
  }
  return entry;
}

std::map<std::string, std::string> ReadMetadata(const Json& json,
                                                std::string_view where) {
  std::map<std::string, std::string> metadata;
  if (json.is_null()) return metadata;  // the reference library accepts it
  if (!json.is_object()) {
    Fail(where, ": __metadata__: expected an object of strings, found ",
         JsonText(json));
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      Fail(where, ": __metadata__.", Printable(key),
           ": expected a string, found ", JsonText(value));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

}  // namespace

std::string_view DtypeName(Dtype dtype) { return Row(dtype).name; }

int DtypeBits(Dtype dtype) { return Row(dtype).bits; }

std::optional<Dtype> DtypeFromName(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::string ShapeText(std::span<const std::uint64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i == 8 && shape.size() > 9) {  // a hostile header may list thousands
      text += StrCat(", ... ", shape.size(), " in all");
      break;
    }
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::optional<std::uint64_t> TensorBits(Dtype dtype,
                                        std::span<const std::uint64_t> shape) {
  // Left to right, as the reference does: [2^63, 2^63, 0] overflows before the
  // 0 is reached, [0, 2^63, 2^63] is an empty tensor.
  std::uint64_t product = 1;
  for (const std::uint64_t size : shape) {
    const auto next = CheckedProduct(product, size);
    if (!next) return std::nullopt;
    product = *next;
  }
  return CheckedProduct(product, static_cast<std::uint64_t>(DtypeBits(dtype)));
}

std::uint64_t TensorInfo::Elements() const {
  std::uint64_t product = 1;  // cannot overflow: TensorBits did not
  for (const std::uint64_t size : shape) product *= size;
  return product;
}

SafetensorsFile SafetensorsFile::Open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.path_ = path;
  Mapping mapping = MapFile(path);
  file.map_ = std::move(mapping.owner);
  file.file_bytes_ = mapping.bytes.size();
  const std::string_view header = HeaderText(mapping.bytes, PathText(path));
  file.data_start_ = 8 + header.size();
  file.ReadHeader(header, mapping.bytes.subspan(8 + header.size()));
  return file;
}

void SafetensorsFile::ReadHeader(std::string_view header,
                                 std::span<const std::byte> data) {
  const std::string where = PathText(path_);
  const Json json = ParseJson(header, where + ": header");
  std::vector<Entry> entries;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      metadata_ = ReadMetadata(value, where);
    } else {
      entries.push_back(ReadEntry(name, value, where));
    }
  }
  // The header may list tensors in any order. Sorted by place, each must begin
  // where the one before ends: no hole, no overlap.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.info.offset, a.end) < std::pair(b.info.offset, b.end);
  });
  std::uint64_t end = 0;
  for (const Entry& entry : entries) {
    if (entry.info.offset != end) {
      Fail(where, ": tensor \"", Printable(entry.info.name),
           "\": expected to begin at byte ", end,
           " of the data, where the tensor before it ends; found ",
           entry.info.offset,
           entry.info.offset < end ? " (they overlap)" : " (a hole)");
    }
    end = entry.end;
  }
  if (end > data.size()) {
    Fail(where, ": incomplete file: its tensors need ", end,
         " bytes of data, found ", data.size(), "; download it again");
  }
  if (end < data.size()) {
    Fail(where, ": expected the file to end with its last tensor after ", end,
         " bytes of data, found ", data.size() - end, " bytes more");
  }
  tensors_.reserve(entries.size());
  for (Entry& entry : entries) {
    entry.info.bytes =
        data.subspan(static_cast<std::size_t>(entry.info.offset),
                     static_cast<std::size_t>(entry.end - entry.info.offset));
    index_[entry.info.name] = tensors_.size();
    tensors_.push_back(std::move(entry.info));
  }
}

const TensorInfo* SafetensorsFile::Find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace kvlab
