#include "common/loader/safetensors_writer.h"

#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/error.h"

namespace kvlab {
namespace {

/// The header, padded; checks on the way that every tensor is well formed: a
/// wrong one is a bug of the caller.
std::string HeaderFor(const std::map<std::string, std::string>& metadata,
                      std::span<const TensorToWrite> tensors) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names = {"__metadata__"};
  std::uint64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    KVLAB_CHECK(names.insert(tensor.name).second);
    const auto bits = TensorBits(tensor.dtype, tensor.shape);
    KVLAB_CHECK(bits.has_value());
    KVLAB_CHECK_EQ(*bits % 8, 0u);
    KVLAB_CHECK_EQ(*bits / 8, tensor.bytes.size());
    const std::uint64_t end = offset + tensor.bytes.size();
    header.push_back({tensor.name,
                      {{"dtype", DtypeName(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"data_offsets", {offset, end}}}});
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

void WriteSafetensors(const std::filesystem::path& path,
                      const std::map<std::string, std::string>& metadata,
                      std::span<const TensorToWrite> tensors) {
  OutputFile file(path);
  WriteSafetensors(file, metadata, tensors);
  file.Commit();
}

void WriteSafetensors(OutputFile& file,
                      const std::map<std::string, std::string>& metadata,
                      std::span<const TensorToWrite> tensors) {
  const std::string header = HeaderFor(metadata, tensors);
  const std::uint64_t length = header.size();
  file.Write(std::as_bytes(std::span(&length, 1)));  // little-endian host
  file.Write(header);
  for (const TensorToWrite& tensor : tensors) file.Write(tensor.bytes);
}

}  // namespace kvlab
