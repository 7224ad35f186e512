#include "common/loader/model_files.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "common/loader/json.h"

namespace kvlab {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// What to do with a directory that has no safetensors file.
std::string Advice(const fs::path& directory) {
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (HasEntry(directory / name)) {
      return StrCat("; it has ", name, ": save the model as safetensors");
    }
  }
  return "; is this a Hugging Face model directory?";
}

/// A shard must be a file of the directory itself: an index that came with a
/// download must not make us open anything else.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string("/\\\0", 3)) == std::string::npos;
}

/// tensor -> shard, as the index says it.
std::map<std::string, std::string> ReadWeightMap(const fs::path& path) {
  const Json json = ReadJsonFile(path);
  const std::string where = PathText(path);
  const JsonFields fields(json, where);
  const Json* found = fields.Find("weight_map");
  if (found == nullptr || !found->is_object() || found->empty()) {
    fields.Refuse("weight_map", "an object that maps tensors to files",
                  found == nullptr ? "no such field" : JsonText(*found));
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, file] : found->items()) {
    if (!file.is_string() || !IsPlainFileName(file.get<std::string>())) {
      Fail(where, ": weight_map: tensor \"", Printable(tensor),
           "\": expected the name of a file in the same directory, found ",
           JsonText(file));
    }
    weight_map[tensor] = file.get<std::string>();
  }
  return weight_map;
}

/// All shards that are not there, in one message: whoever has to fetch them
/// wants the list.
void CheckAllPresent(const fs::path& index,
                     const std::set<std::string>& shards) {
  constexpr int kShown = 20;
  std::string names;
  int absent = 0;
  for (const std::string& shard : shards) {
    // A dangling link is absent too: its blob was not downloaded.
    std::error_code ignored;
    if (fs::exists(index.parent_path() / shard, ignored)) continue;
    if (++absent <= kShown)
      names += (absent > 1 ? ", " : "") + Printable(shard);
  }
  if (absent == 0) return;
  if (absent > kShown) names += StrCat(" and ", absent - kShown, " more");
  Fail(PathText(index), ": ", absent, " of ", shards.size(),
       " files that it names are absent: ", names, "; download them");
}

}  // namespace

std::shared_ptr<ModelFiles> ModelFiles::Open(const fs::path& directory) {
  CheckDirectory(directory);
  std::shared_ptr<ModelFiles> files(new ModelFiles);
  files->directory_ = directory;
  if (HasEntry(directory / kSingleFile)) {
    files->AddFile(directory / kSingleFile);
  } else if (HasEntry(directory / kIndexFile)) {
    files->OpenShards(directory / kIndexFile);
  } else {
    Fail(PathText(directory), ": expected ", kSingleFile, " or ", kIndexFile,
         ", found neither", Advice(directory));
  }
  return files;
}

void ModelFiles::OpenShards(const fs::path& index) {
  const std::map<std::string, std::string> weight_map = ReadWeightMap(index);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map) shards.insert(shard);
  CheckAllPresent(index, shards);
  for (const std::string& shard : shards) AddFile(directory_ / shard);
  for (const auto& [tensor, shard] : weight_map) {
    const TensorInfo* info = Find(tensor);
    if (info == nullptr || PathOf(*info).filename() != shard) {
      Fail(PathText(index), ": weight_map: expected tensor \"",
           Printable(tensor), "\" in ", Printable(shard), ", found it in ",
           info == nullptr ? "no file"
                           : Printable(PathOf(*info).filename().string()));
    }
  }
}

void ModelFiles::AddFile(const fs::path& path) {
  files_.push_back(SafetensorsFile::Open(path));
  // Growing the vector moves the files; their tensors stay where they are.
  for (const TensorInfo& tensor : files_.back().tensors()) {
    const auto [place, added] =
        by_name_.insert({tensor.name, Place{files_.size() - 1, &tensor}});
    if (!added) {
      Fail(PathText(path), ": tensor \"", Printable(tensor.name), "\" is in ",
           PathText(files_[place->second.file].path()),
           " too; expected it once");
    }
  }
}

const TensorInfo* ModelFiles::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second.tensor;
}

const fs::path& ModelFiles::PathOf(const TensorInfo& tensor) const {
  return files_[by_name_.at(tensor.name).file].path();
}

const void* ModelFiles::Aligned(const TensorInfo& tensor,
                                std::size_t alignment) {
  const std::byte* const data = tensor.bytes.data();
  if (reinterpret_cast<std::uintptr_t>(data) % alignment == 0) return data;
  const std::size_t size = tensor.bytes.size();
  copies_.push_back(std::make_unique<std::byte[]>(size));
  std::memcpy(copies_.back().get(), data, size);
  return copies_.back().get();
}

}  // namespace kvlab
