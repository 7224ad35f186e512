/// \file
/// Reading test fixtures.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "common/loader/safetensors.h"

namespace kvlab {

/// A file or folder of tests/oracle/fixtures.
inline std::filesystem::path FixturePath(const std::string& name) {
  return std::filesystem::path(KVLAB_SOURCE_DIR) / "tests/oracle/fixtures" /
         name;
}

/// A tensor's elements; T must have the size of its dtype.
template <typename T>
std::vector<T> Values(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo* tensor = file.Find(name);
  if (tensor == nullptr) {
    ADD_FAILURE() << file.path() << " has no tensor " << name;
    return {};
  }
  EXPECT_EQ(tensor->bytes.size(), tensor->Elements() * sizeof(T)) << name;
  std::vector<T> values(tensor->bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

}  // namespace kvlab
