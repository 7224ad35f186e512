/// \file
/// The reference: plain C++, one lane after the other. What a debugger shows
/// best, and what every other instruction set is compared with bit for bit.
#include <cstring>

#include "common/base/deterministic_math.h"
#include "common/base/float16.h"
#include "common/simd/kernels.h"
#include "common/simd/tables.h"

namespace kvlab {
namespace {

struct ScalarVector {
  using Part = ScalarVector;
  static constexpr int kLanes = kvlab::kLanes;
  static constexpr int kMatmulRows = 2;
  static constexpr int kMatmulTokens = 2;
  static constexpr int kMatvecRows = 2;
  static constexpr int kValueRows = 4;
  static constexpr int kColumns = 16;
  static constexpr int kPrefetchBytes = 0;

  float lane[kLanes];

  static ScalarVector Zero() { return Set(0.0f); }
  static ScalarVector Set(float x) {
    ScalarVector v;
    for (float& lane : v.lane) lane = x;
    return v;
  }
  static ScalarVector Load(const float* p) {
    ScalarVector v;
    std::memcpy(v.lane, p, sizeof v.lane);
    return v;
  }
  static ScalarVector LoadPartial(const float* p, int n) {
    ScalarVector v = Zero();
    for (int i = 0; i < n; ++i) v.lane[i] = p[i];
    return v;
  }
  static ScalarVector LoadBf16(const std::uint16_t* p) {
    ScalarVector v;
    for (int i = 0; i < kLanes; ++i) v.lane[i] = ToFloat(BFloat16{p[i]});
    return v;
  }
  static ScalarVector LoadF16(const std::uint16_t* p) {
    ScalarVector v;
    for (int i = 0; i < kLanes; ++i) v.lane[i] = ToFloat(Float16{p[i]});
    return v;
  }
  static ScalarVector LoadInt8(const std::int8_t* p) {
    ScalarVector v;
    for (int i = 0; i < kLanes; ++i) v.lane[i] = p[i];
    return v;
  }
  void Store(float* p) const { std::memcpy(p, lane, sizeof lane); }
  void StoreInt8(std::int8_t* p) const {
    for (int i = 0; i < kLanes; ++i) p[i] = static_cast<std::int8_t>(lane[i]);
  }

  static ScalarVector Fma(ScalarVector a, ScalarVector b, ScalarVector c) {
    for (int i = 0; i < kLanes; ++i) {
      c.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
    }
    return c;
  }
  static ScalarVector Max(ScalarVector a, ScalarVector b) {
    for (int i = 0; i < kLanes; ++i) {
      a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
    }
    return a;
  }
  static ScalarVector Min(ScalarVector a, ScalarVector b) {
    for (int i = 0; i < kLanes; ++i) {
      a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
    }
    return a;
  }
  static ScalarVector Abs(ScalarVector a) {
    for (float& lane : a.lane) lane = __builtin_fabsf(lane);
    return a;
  }
  static ScalarVector Exp(ScalarVector x) {
    for (float& lane : x.lane) lane = kvlab::Exp(lane);
    return x;
  }
  float Sum() const {
    float s[8];
    for (int i = 0; i < 8; ++i) s[i] = lane[i] + lane[i + 8];
    for (int i = 0; i < 4; ++i) s[i] = s[i] + s[i + 4];
    for (int i = 0; i < 2; ++i) s[i] = s[i] + s[i + 2];
    return s[0] + s[1];
  }

  template <int kGroups>
  static void DotRows(const std::int8_t* q, const std::int8_t* rows, int count,
                      int stride, ScalarVector* sums) {
    for (int j = 0; j < kGroups; ++j) {
      sums[j] = Zero();
      for (int r = 0; r < count; ++r) {
        const std::int8_t* row = rows + std::int64_t{r} * stride;
        std::int32_t sum = 0;
        for (int i = j * kQ8Group; i < (j + 1) * kQ8Group; ++i) {
          sum += q[i] * row[i];
        }
        sums[j].lane[r] = static_cast<float>(sum);
      }
    }
  }
};

ScalarVector operator+(ScalarVector a, ScalarVector b) {
  for (int i = 0; i < kLanes; ++i) a.lane[i] += b.lane[i];
  return a;
}
ScalarVector operator*(ScalarVector a, ScalarVector b) {
  for (int i = 0; i < kLanes; ++i) a.lane[i] *= b.lane[i];
  return a;
}
ScalarVector operator/(ScalarVector a, ScalarVector b) {
  for (int i = 0; i < kLanes; ++i) a.lane[i] /= b.lane[i];
  return a;
}

}  // namespace

const Primitives& ScalarPrimitives() {
  static constexpr Primitives table =
      Kernels<ScalarVector>::Table(Isa::kScalar);
  return table;
}

}  // namespace kvlab
