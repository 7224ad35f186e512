/// \file
/// Skipping a test honestly.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

namespace kvlab {

/// True if the environment's KVLAB_REQUIRE, a list separated by commas, names
/// `what`: then a test that needs it must run.
inline bool IsRequired(std::string_view what) {
  const char* list = std::getenv("KVLAB_REQUIRE");
  std::istringstream names(list != nullptr ? list : "");
  for (std::string name; std::getline(names, name, ',');) {
    if (name == what) return true;
  }
  return false;
}

}  // namespace kvlab

/// Skips the rest of the test because `what` is missing, saying why and what
/// to do; where KVLAB_REQUIRE names it, fails instead.
#define KVLAB_SKIP_OR_FAIL(what, reason)                            \
  do {                                                              \
    if (::kvlab::IsRequired(what)) {                                \
      FAIL() << "KVLAB_REQUIRE names " << (what) << ": " << reason; \
    }                                                               \
    GTEST_SKIP() << (what) << ": " << reason;                       \
  } while (false)

/// Leaves a test out in an emulator, where it would take minutes; `reason` says
/// what still tests the same there.
#define KVLAB_NEEDS_A_REAL_CPU(reason)                            \
  do {                                                            \
    if (KVLAB_EMULATED) KVLAB_SKIP_OR_FAIL("real_cpu", (reason)); \
  } while (false)
