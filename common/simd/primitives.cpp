#include "common/simd/primitives.h"

#include <array>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "common/base/error.h"
#include "common/simd/tables.h"

namespace kvlab {
namespace {

struct IsaEntry {
  Isa isa;
  std::string_view name;
};

constexpr std::array<IsaEntry, 6> kIsas = {{
    {Isa::kScalar, "scalar"},
    {Isa::kAvx2, "avx2"},
    {Isa::kAvx512, "avx512"},
    {Isa::kAvx512Vnni, "avx512vnni"},
    {Isa::kNeon, "neon"},
    {Isa::kNeonDotprod, "neon_dotprod"},
}};

#if defined(__x86_64__)
constexpr std::array kBuilt = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512,
                               Isa::kAvx512Vnni};

/// Conversion of float16; clang 16's __builtin_cpu_supports does not know it.
bool CpuHasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool BuiltAndCpuHas(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             CpuHasF16c();
#if defined(KVLAB_EMULATE_AVX512)  // for tests: made of AVX2
    case Isa::kAvx512:
    case Isa::kAvx512Vnni:
      return BuiltAndCpuHas(Isa::kAvx2);
#else
    case Isa::kAvx512:
      return BuiltAndCpuHas(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    case Isa::kAvx512Vnni:
      return BuiltAndCpuHas(Isa::kAvx512) &&
             __builtin_cpu_supports("avx512vnni");
#endif
    default:
      return false;
  }
}

const Primitives* VectorPrimitives(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return &Avx2Primitives();
    case Isa::kAvx512:
      return &Avx512Primitives();
    case Isa::kAvx512Vnni:
      return &Avx512VnniPrimitives();
    default:
      return nullptr;
  }
}
#elif defined(__aarch64__)
constexpr std::array kBuilt = {Isa::kScalar, Isa::kNeon, Isa::kNeonDotprod};

bool BuiltAndCpuHas(Isa isa) {
  if (isa == Isa::kNeon) return true;  // part of the architecture
  if (isa != Isa::kNeonDotprod) return false;
#if defined(__linux__)
  constexpr unsigned long kAsimdDp = 1ul << 20;  // HWCAP_ASIMDDP
  return (getauxval(AT_HWCAP) & kAsimdDp) != 0;
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr,
                      0) == 0 &&
         has != 0;
#else
  return false;
#endif
}

const Primitives* VectorPrimitives(Isa isa) {
  if (isa == Isa::kNeon) return &NeonPrimitives();
  if (isa == Isa::kNeonDotprod) return &NeonDotprodPrimitives();
  return nullptr;
}
#else
constexpr std::array kBuilt = {Isa::kScalar};

bool BuiltAndCpuHas(Isa) { return false; }
const Primitives* VectorPrimitives(Isa) { return nullptr; }
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

std::span<const Isa> KnownIsas() {
  static constexpr auto known = [] {
    std::array<Isa, kIsas.size()> all{};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = kIsas[i].isa;
    return all;
  }();
  return known;
}

bool CpuHas(Isa isa) { return isa == Isa::kScalar || BuiltAndCpuHas(isa); }

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
  const Primitives* vectors = VectorPrimitives(isa);
  return vectors != nullptr ? *vectors : ScalarPrimitives();
}

}  // namespace kvlab
