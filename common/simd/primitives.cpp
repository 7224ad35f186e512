#include "common/simd/primitives.h"

#include <array>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "common/base/error.h"
#include "common/simd/tables.h"

namespace kvlab {
namespace {

struct IsaEntry {
  Isa isa;
  std::string_view name;
};

// Every name that --isa knows, on any architecture.
constexpr std::array<IsaEntry, 2> kIsas = {{
    {Isa::kScalar, "scalar"},
    {Isa::kAvx2, "avx2"},
}};

#if defined(__x86_64__)
constexpr std::array kBuilt = {Isa::kScalar, Isa::kAvx2};
#else
constexpr std::array kBuilt = {Isa::kScalar};
#endif

#if defined(__x86_64__)
/// Conversion of float16; clang 16's __builtin_cpu_supports does not know it.
bool CpuHasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

std::string_view IsaName(Isa isa) {
  for (const IsaEntry& entry : kIsas) {
    if (entry.isa == isa) return entry.name;
  }
  KVLAB_CHECK(false);
  return {};
}

std::span<const Isa> BuiltIsas() { return kBuilt; }

bool CpuHas(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
#if defined(__x86_64__)
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             CpuHasF16c();
#else
      return false;
#endif
  }
  return false;
}

Isa BestIsa() {
  Isa best = Isa::kScalar;
  for (const Isa isa : kBuilt) {
    if (CpuHas(isa)) best = isa;
  }
  return best;
}

Isa ParseIsa(std::string_view name) {
  std::string known;
  for (const IsaEntry& entry : kIsas) {
    if (entry.name == name) {
      if (CpuHas(entry.isa)) return entry.isa;
      FailUsage("--isa ", name,
                ": this CPU does not have it; the best it has is ",
                IsaName(BestIsa()), " (the default)");
    }
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  FailUsage("--isa ", Printable(name), ": unknown instruction set; known are ",
            known);
}

const Primitives& PrimitivesFor(Isa isa) {
  KVLAB_CHECK(CpuHas(isa));
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) return Avx2Primitives();
#endif
  return ScalarPrimitives();
}

}  // namespace kvlab
