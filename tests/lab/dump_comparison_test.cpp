#include "common/lab/dump_comparison.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "common/loader/safetensors_writer.h"
#include "tests/loader/temp_dir.h"

namespace kvlab {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

using Shape = std::vector<std::uint64_t>;

/// Tensors to be written as one file.
class Tensors {
 public:
  template <typename T>
  Tensors& Add(const std::string& name, Dtype dtype, Shape shape,
               const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    tensors_.push_back(
        {{name, dtype, std::move(shape), {}}, {bytes.begin(), bytes.end()}});
    return *this;
  }
  Tensors& F32(const std::string& name, Shape shape,
               const std::vector<float>& values) {
    return Add(name, Dtype::kF32, std::move(shape), values);
  }
  Tensors& F32(const std::string& name, const std::vector<float>& values) {
    return F32(name, {values.size()}, values);
  }
  Tensors& I32(const std::string& name,
               const std::vector<std::int32_t>& values) {
    return Add(name, Dtype::kI32, {values.size()}, values);
  }
  Tensors& Meta(const std::string& key, const std::string& value) {
    metadata_[key] = value;
    return *this;
  }
  SafetensorsFile File(const std::filesystem::path& path) const {
    std::vector<TensorToWrite> list;
    for (const auto& [tensor, bytes] : tensors_) {
      list.push_back(tensor);
      list.back().bytes = bytes;
    }
    WriteSafetensors(path, metadata_, list);
    return SafetensorsFile::Open(path);
  }

 private:
  std::vector<std::pair<TensorToWrite, std::vector<std::byte>>> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// Two open files and what comparing them gave.
struct Compared {
  SafetensorsFile a, b;
  DumpComparison result;

  const TensorComparison& operator[](const std::string& name) const {
    for (const TensorComparison& t : result.tensors) {
      if (t.name == name) return t;
    }
    ADD_FAILURE() << "no tensor " << name;
    return result.tensors.at(0);
  }
};

class DumpComparisonTest : public testing::Test {
 protected:
  Compared Compare(const Tensors& a, const Tensors& b,
                   std::optional<double> tolerance = std::nullopt) {
    SafetensorsFile file_a = a.File(dir_ / "a");
    SafetensorsFile file_b = b.File(dir_ / "b");
    DumpComparison result = CompareDumps(file_a, file_b, tolerance);
    // Moved, not copied: the result points into them.
    return {std::move(file_a), std::move(file_b), std::move(result)};
  }
  /// The comparison of one tensor of floats; its pointers are not valid.
  TensorComparison CompareFloats(const std::vector<float>& a,
                                 const std::vector<float>& b,
                                 std::optional<double> tolerance = {}) {
    return Compare(Tensors().F32("x", a), Tensors().F32("x", b),
                   tolerance)["x"];
  }
  /// The comparison of one tensor of another type, shape [n].
  template <typename T>
  TensorComparison CompareAs(Dtype dtype, const std::vector<T>& a,
                             const std::vector<T>& b,
                             std::optional<double> tolerance = {}) {
    const Shape shape = {a.size() * sizeof(T) * 8 /
                         static_cast<std::size_t>(DtypeBits(dtype))};
    return Compare(Tensors().Add("x", dtype, shape, a),
                   Tensors().Add("x", dtype, shape, b), tolerance)["x"];
  }

  TempDir dir_;
};

// --- Equal or not ------------------------------------------------------------

TEST_F(DumpComparisonTest, SameBitsAreEqual) {
  const Tensors file =
      Tensors().F32("x", {2, 2}, {1, -2, 1e-40f, kInf}).I32("tokens", {7, -8});
  const Compared same = Compare(file, file);
  EXPECT_EQ(same.result.verdict(), TensorVerdict::kEqual);
  EXPECT_EQ(same.result.first_difference(), nullptr);
  EXPECT_EQ(same["x"].differing, 0u);
  EXPECT_EQ(same["x"].compared, 4u);
  EXPECT_EQ(same["x"].error->max_abs(), 0);
  EXPECT_EQ(same["x"].error->relative_l2(), 0);
  EXPECT_EQ(same["x"].max_ulp, 0u);
  EXPECT_FALSE(same["x"].first);
  EXPECT_FALSE(same["x"].largest);
}

TEST_F(DumpComparisonTest, TheSignOfZeroIsABit) {
  const TensorComparison exact = CompareFloats({1, 0.0f}, {1, -0.0f});
  EXPECT_EQ(exact.verdict(), TensorVerdict::kDifferent);
  EXPECT_EQ(exact.first, 1u);
  EXPECT_EQ(exact.largest, 1u);
  EXPECT_EQ(exact.max_ulp, 0u);
  // As numbers they are the same.
  EXPECT_EQ(CompareFloats({1, 0.0f}, {1, -0.0f}, 0.0).verdict(),
            TensorVerdict::kWithin);
}

TEST_F(DumpComparisonTest, MeasuresErrors) {
  const TensorComparison t = CompareFloats({3, 4, 5, 8}, {3, 4.5f, 4, 8});
  EXPECT_EQ(t.differing, 2u);
  EXPECT_EQ(t.beyond, 2u);
  EXPECT_EQ(t.first, 1u);
  EXPECT_EQ(t.largest, 2u);
  EXPECT_EQ(t.error->max_abs(), 1);
  // All sums are exact; the norms and the quotient are rounded.
  EXPECT_DOUBLE_EQ(t.error->relative_l2(),
                   std::sqrt(0.25 + 1) / std::sqrt(9 + 20.25 + 16 + 64));
  // 4 to 5 is a quarter of the 2^23 floats from 4 to 8; 4 to 4.5 an eighth.
  EXPECT_EQ(t.max_ulp, 1u << 21);
}

TEST_F(DumpComparisonTest, ToleranceIsRelativeToTheLargestOfB) {
  // max|a - b| = 0.25, max|b| = 2, max|a| = 2.25; all exact.
  const std::vector<float> a = {0, 2.25f}, b = {0, 2};
  EXPECT_EQ(CompareFloats(a, b, 0.125).verdict(), TensorVerdict::kWithin);
  EXPECT_EQ(CompareFloats(a, b, 0.124).verdict(), TensorVerdict::kDifferent);
  EXPECT_EQ(CompareFloats(a, b, 0.124).allowed, 0.248);
  // 0.25 / 2.25 = 0.111...: enough the other way round.
  EXPECT_EQ(CompareFloats(b, a, 0.112).verdict(), TensorVerdict::kWithin);
  // Of the whole tensor: an element that is 0 in b may differ too.
  EXPECT_EQ(CompareFloats({0.1f, 2}, {0, 2}, 0.1).verdict(),
            TensorVerdict::kWithin);
  EXPECT_EQ(CompareFloats({1}, {0}, 1e300).verdict(),
            TensorVerdict::kDifferent);
  EXPECT_EQ(CompareFloats({-3, 1}, {-4, 1}, 0.25).verdict(),
            TensorVerdict::kWithin);
}

TEST_F(DumpComparisonTest, FirstIsTheFirstBeyondTheTolerance) {
  const TensorComparison t =
      CompareFloats({8, 1.5f, 4, 5}, {8, 1, 1, 1}, 0.125);
  EXPECT_EQ(t.allowed, 1);
  EXPECT_EQ(t.differing, 3u);
  EXPECT_EQ(t.beyond, 2u);
  EXPECT_EQ(t.first, 2u);
  EXPECT_EQ(t.largest, 3u);
  const TensorComparison within = CompareFloats({8, 1.5f}, {8, 1}, 0.125);
  EXPECT_FALSE(within.first);
  EXPECT_EQ(within.largest, 1u);
}

// --- NaN and infinity --------------------------------------------------------

TEST_F(DumpComparisonTest, NanIsAlwaysADifference) {
  for (const std::optional<double> tolerance :
       {std::optional<double>(), std::optional(0.0), std::optional(1e300)}) {
    const TensorComparison all =
        CompareFloats({kNan, kNan}, {kNan, kNan}, tolerance);
    EXPECT_EQ(all.verdict(), TensorVerdict::kDifferent);
    EXPECT_EQ(all.differing, 2u);
    EXPECT_EQ(all.first, 0u);
    EXPECT_EQ(all.error->nan(), 2u);
    EXPECT_TRUE(std::isnan(all.error->max_abs()));
    EXPECT_TRUE(std::isnan(all.error->relative_l2()));
    EXPECT_EQ(CompareFloats({1, kNan}, {1, 2}, tolerance).first, 1u);
    EXPECT_EQ(CompareFloats({1, 2}, {1, kNan}, tolerance).first, 1u);
  }
  // Larger than any difference, wherever it stands.
  EXPECT_EQ(CompareFloats({9, kNan, 99, kNan}, {1, 1, 1, 1}).largest, 1u);
}

TEST_F(DumpComparisonTest, NanOfEveryFloatFormat) {
  EXPECT_EQ(CompareAs<std::uint16_t>(Dtype::kF16, {0x7E00}, {0x7E00}, 1.0)
                .error->nan(),
            1u);
  EXPECT_EQ(CompareAs<std::uint16_t>(Dtype::kBF16, {0xFFC0}, {0xFFC0}, 1.0)
                .error->nan(),
            1u);
  EXPECT_EQ(CompareAs<double>(Dtype::kF64, {std::nan("")}, {std::nan("")}, 1.0)
                .beyond,
            1u);
}

TEST_F(DumpComparisonTest, InfinityEqualsItselfOnly) {
  EXPECT_EQ(CompareFloats({kInf, -kInf}, {kInf, -kInf}).verdict(),
            TensorVerdict::kEqual);
  // A tolerance times an infinite b must not let everything pass.
  for (const auto& [a, b] :
       {std::pair(1.0f, kInf), std::pair(kInf, 1.0f), std::pair(-kInf, kInf)}) {
    const TensorComparison t = CompareFloats({2, a}, {2, b}, 1.0);
    EXPECT_EQ(t.verdict(), TensorVerdict::kDifferent) << a << ' ' << b;
    EXPECT_EQ(t.first, 1u);
    EXPECT_EQ(t.error->infinite(), 1u);
    EXPECT_EQ(t.error->max_abs(), kInf);
    EXPECT_EQ(t.error->relative_l2(), kInf);
  }
  // Nor widen what the others may differ by.
  const TensorComparison t = CompareFloats({kInf, 3}, {kInf, 2}, 0.25);
  EXPECT_EQ(t.allowed, 0.5);
  EXPECT_EQ(t.first, 1u);
  EXPECT_EQ(t.error->max_abs(), 1);
  // An allowance that overflows lets no infinity pass either.
  EXPECT_EQ(
      CompareAs<double>(Dtype::kF64, {1e300, kInf}, {1e300, 1}, 1e300).first,
      1u);
}

// --- Formats -----------------------------------------------------------------

TEST_F(DumpComparisonTest, UlpCountsFloatsOfTheTensorsFormat) {
  EXPECT_EQ(CompareFloats({1}, {std::nextafter(1.0f, 2.0f)}).max_ulp, 1u);
  // Across zero, by the smallest subnormals on both sides.
  EXPECT_EQ(CompareFloats({1e-45f}, {-1e-45f}).max_ulp, 2u);
  EXPECT_EQ(CompareFloats({-1}, {-std::nextafter(1.0f, 2.0f)}).max_ulp, 1u);
  EXPECT_EQ(CompareAs<std::uint16_t>(Dtype::kBF16, {0x3F80}, {0x3F83}).max_ulp,
            3u);
  EXPECT_EQ(CompareAs<std::uint16_t>(Dtype::kF16, {0x0001}, {0x8002}).max_ulp,
            3u);
  EXPECT_EQ(
      CompareAs<double>(Dtype::kF64, {1}, {std::nextafter(1.0, 0.0)}).max_ulp,
      1u);
  constexpr double kMax = std::numeric_limits<double>::max();
  const TensorComparison far = CompareAs<double>(Dtype::kF64, {kMax}, {-1});
  EXPECT_EQ(far.max_ulp, 0x7FEFFFFFFFFFFFFFu + 0x3FF0000000000000u);
  // NaN and infinity take no part.
  EXPECT_EQ(CompareFloats({kNan, kInf, 1}, {1, 1, 1}).max_ulp, 0u);
}

TEST_F(DumpComparisonTest, SixteenBitFloatsAreNumbers) {
  const TensorComparison bf16 = CompareAs<std::uint16_t>(
      Dtype::kBF16, {0x3F80, 0xC040}, {0x4000, 0xC040});  // 1, -3; 2, -3
  EXPECT_EQ(bf16.error->max_abs(), 1);
  EXPECT_DOUBLE_EQ(bf16.error->relative_l2(), 1 / std::sqrt(13));
  const TensorComparison f16 =
      CompareAs<std::uint16_t>(Dtype::kF16, {0x3C00}, {0x4200});  // 1; 3
  EXPECT_EQ(f16.error->max_abs(), 2);
}

TEST_F(DumpComparisonTest, IntegersMustBeEqualWhateverTheTolerance) {
  const Compared t = Compare(Tensors().I32("tokens", {100, 200}),
                             Tensors().I32("tokens", {100, 201}), 1.0);
  EXPECT_EQ(t["tokens"].verdict(), TensorVerdict::kDifferent);
  EXPECT_EQ(t["tokens"].first, 1u);
  EXPECT_EQ(t["tokens"].error->max_abs(), 1);
  EXPECT_FALSE(t["tokens"].max_ulp);
  // What a double cannot tell apart.
  constexpr std::int64_t kBig = std::int64_t{1} << 53;
  const TensorComparison i64 =
      CompareAs<std::int64_t>(Dtype::kI64, {kBig}, {kBig + 1});
  EXPECT_EQ(i64.differing, 1u);
  EXPECT_EQ(i64.error->max_abs(), 1);
  EXPECT_EQ(CompareAs<std::int64_t>(Dtype::kI64, {INT64_MIN}, {INT64_MAX})
                .error->max_abs(),
            0x1p64);
  EXPECT_EQ(CompareAs<std::int8_t>(Dtype::kI8, {-128}, {127}).error->max_abs(),
            255);
  EXPECT_EQ(
      CompareAs<std::uint64_t>(Dtype::kU64, {0}, {UINT64_MAX}).error->max_abs(),
      0x1p64);
}

TEST_F(DumpComparisonTest, OtherDtypesAreComparedByBytes) {
  const std::vector<std::uint8_t> a = {1, 2, 3, 0xAB, 5, 6, 7, 8,
                                       1, 2, 3, 4,    5, 6, 7, 8};
  std::vector<std::uint8_t> b = a;
  b[9] = 0x7F;
  const TensorComparison f8 = CompareAs(Dtype::kF8E4M3, a, b, 1.0);
  EXPECT_EQ(f8.compared, 16u);
  EXPECT_EQ(f8.differing, 1u);
  EXPECT_EQ(f8.first, 9u);
  EXPECT_FALSE(f8.error);
  EXPECT_EQ(f8.verdict(), TensorVerdict::kDifferent);
  EXPECT_EQ(CompareAs(Dtype::kC64, a, b).first, 1u);
  EXPECT_EQ(CompareAs(Dtype::kC64, a, a).verdict(), TensorVerdict::kEqual);
}

TEST_F(DumpComparisonTest, ShowsElementsExactly) {
  const auto text = [&](Dtype dtype, auto value) {
    return ElementText(
        Tensors()
            .Add("x", dtype, {1}, std::vector<decltype(value)>{value})
            .File(dir_ / "a")
            .tensors()[0],
        0);
  };
  EXPECT_EQ(text(Dtype::kF32, 0.1f), "0.100000001");
  EXPECT_EQ(text(Dtype::kF32, -0.0f), "-0.0");
  EXPECT_EQ(text(Dtype::kF32, 12.0f), "12.0");
  EXPECT_EQ(text(Dtype::kF32, 1e20f), "1.00000002e+20");
  EXPECT_EQ(text(Dtype::kF32, -kNan), "nan");
  EXPECT_EQ(text(Dtype::kF32, -kInf), "-inf");
  EXPECT_EQ(text(Dtype::kF64, 0.1), "0.10000000000000001");
  EXPECT_EQ(text(Dtype::kF16, std::uint16_t{0x3C01}), "1.00097656");
  EXPECT_EQ(text(Dtype::kBF16, std::uint16_t{0xC040}), "-3.0");
  EXPECT_EQ(text(Dtype::kI64, INT64_MIN), "-9223372036854775808");
  EXPECT_EQ(text(Dtype::kI32, std::int32_t{-7}), "-7");
  EXPECT_EQ(text(Dtype::kI16, std::int16_t{-7}), "-7");
  EXPECT_EQ(text(Dtype::kI8, std::int8_t{-7}), "-7");
  EXPECT_EQ(text(Dtype::kU64, UINT64_MAX), "18446744073709551615");
  EXPECT_EQ(text(Dtype::kU32, UINT32_MAX), "4294967295");
  EXPECT_EQ(text(Dtype::kU16, std::uint16_t{65535}), "65535");
  EXPECT_EQ(text(Dtype::kU8, std::uint8_t{200}), "200");
  EXPECT_EQ(text(Dtype::kBool, std::uint8_t{1}), "1");
  EXPECT_EQ(text(Dtype::kF8E5M2, std::uint8_t{0x3F}), "0x3F");
  EXPECT_EQ(text(Dtype::kC64, std::uint64_t{0x0102}), "0x0000000000000102");
}

TEST_F(DumpComparisonTest, ElementsMayLieAtAnyAddress) {
  const auto file = [](float value) {
    return Tensors()
        .Add<std::uint8_t>("odd", Dtype::kU8, {3}, {1, 2, 3})
        .Add<float>("x", Dtype::kF32, {2}, {1, value})
        .Add<double>("y", Dtype::kF64, {1}, {value});
  };
  const Compared t = Compare(file(5), file(6));
  EXPECT_EQ(t["x"].error->max_abs(), 1);
  EXPECT_EQ(t["y"].error->max_abs(), 1);
}

TEST_F(DumpComparisonTest, NormsNeitherOverflowNorVanish) {
  for (const double size : {1e300, 1e-300, 1.0}) {
    const TensorComparison t = CompareAs<double>(
        Dtype::kF64, {0, 4 * size, size}, {3 * size, 0, size});
    // 5 / sqrt(10), each step rounded: a few times 2^-53.
    EXPECT_NEAR(t.error->relative_l2(), 5 / std::sqrt(10.0), 1e-15) << size;
  }
  EXPECT_EQ(CompareFloats({1}, {0}).error->relative_l2(), kInf);
  EXPECT_EQ(CompareFloats({0}, {0}).error->relative_l2(), 0);
}

// --- Places ------------------------------------------------------------------

TEST_F(DumpComparisonTest, NamesThePlaceByItsAxes) {
  std::vector<float> a(2 * 3 * 4 * 5, 1), b = a;
  b[((1 * 3 + 2) * 4 + 3) * 5 + 4] = 2;
  b[((1 * 3 + 2) * 4 + 1) * 5 + 0] = 1.5f;
  const Shape shape = {2, 3, 4, 5};
  const auto place = [&](const std::string& axes_a, const std::string& axes_b) {
    const Compared t =
        Compare(Tensors().F32("x", shape, a).Meta("axes.x", axes_a),
                Tensors().F32("x", shape, b).Meta("axes.x", axes_b));
    EXPECT_EQ(PlaceOf(t["x"], *t["x"].largest), (Shape{1, 2, 3, 4}));
    return PlaceText(t["x"], *t["x"].first);
  };
  EXPECT_EQ(place("step,layer,head,element", ""),
            "step 1, layer 2, head 1, element 0");
  EXPECT_EQ(place("", "step,layer,head,element"),
            "step 1, layer 2, head 1, element 0");
  EXPECT_EQ(place("", ""), "[1, 2, 1, 0]");
  EXPECT_EQ(place("step,layer", ""), "[1, 2, 1, 0]");  // not one for each
  EXPECT_EQ(place("step,layer,head,element,more", ""), "[1, 2, 1, 0]");
  EXPECT_EQ(place("s\x1B,layer,head,element", ""),
            "s\\x1B 1, layer 2, head 1, element 0");
}

TEST_F(DumpComparisonTest, PlacesInScalarsAndManyAxes) {
  const Compared scalar = Compare(Tensors().F32("x", Shape{}, {1}),
                                  Tensors().F32("x", Shape{}, {2}));
  EXPECT_EQ(PlaceText(scalar["x"], 0), "[]");
  Shape many(1000, 1);
  many[998] = 2;
  many[999] = 3;
  const Compared t = Compare(Tensors().F32("x", many, {1, 1, 1, 1, 1, 1}),
                             Tensors().F32("x", many, {1, 1, 1, 1, 2, 1}));
  EXPECT_EQ(PlaceText(t["x"], *t["x"].first), "[4]");
}

TEST_F(DumpComparisonTest, FirstTensorIsTheFirstInTheFileOfA) {
  const Compared t = Compare(
      Tensors().F32("z", {1}).F32("m", {2}).F32("a", {3}),
      Tensors().F32("a", {0}).F32("b", {1}).F32("m", {0}).F32("z", {1}));
  ASSERT_EQ(t.result.tensors.size(), 4u);
  EXPECT_EQ(t.result.tensors[0].name, "z");
  EXPECT_EQ(t.result.tensors[3].name, "b");
  EXPECT_EQ(t.result.first_difference()->name, "m");
  EXPECT_EQ(t.result.Count(TensorVerdict::kDifferent), 3u);
}

TEST_F(DumpComparisonTest, ErrorsOfEachLayerAndHead) {
  std::vector<float> a(2 * 2 * 3 * 2, 1), b = a;
  const auto at = [](int step, int layer, int head, int element) {
    return static_cast<std::size_t>(((step * 2 + layer) * 3 + head) * 2 +
                                    element);
  };
  a[at(0, 1, 2, 0)] = 3;
  a[at(1, 1, 2, 1)] = 0;
  a[at(1, 0, 1, 0)] = 1.5f;
  const Compared t = Compare(Tensors()
                                 .F32("x", {2, 2, 3, 2}, a)
                                 .Meta("axes.x", "step,layer,head,element"),
                             Tensors().F32("x", {2, 2, 3, 2}, b));
  ASSERT_TRUE(t["x"].heads);
  const HeadErrors& heads = *t["x"].heads;
  EXPECT_EQ(heads.layers, 2u);
  EXPECT_EQ(heads.heads, 3u);
  const std::vector<double> max_abs = {0, 0.5, 0, 0, 0, 2};
  ASSERT_EQ(heads.cells.size(), max_abs.size());
  for (std::size_t i = 0; i < max_abs.size(); ++i) {
    EXPECT_EQ(heads.cells[i].max_abs(), max_abs[i]) << i;
  }
  // Four elements of 1 each; (2^2 + 1^2) / 4.
  EXPECT_DOUBLE_EQ(heads.cells[5].relative_l2(), std::sqrt(5.0 / 4));
  EXPECT_FALSE(Compare(Tensors().F32("x", {2, 2, 3, 2}, a),
                       Tensors().F32("x", {2, 2, 3, 2}, b))["x"]
                   .heads);
}

TEST_F(DumpComparisonTest, TooManyHeadsAreNotCollected) {
  const std::vector<float> x(65537, 1);
  const auto file = [&](Shape shape) {
    return Tensors().F32("x", std::move(shape), x).Meta("axes.x", "layer,head");
  };
  EXPECT_FALSE(Compare(file({1, 65537}), file({1, 65537}))["x"].heads);
  const auto empty = [](Shape shape) {
    return Tensors()
        .F32("x", std::move(shape), {})
        .Meta("axes.x", "layer,head");
  };
  EXPECT_FALSE(
      Compare(empty({0, 1ull << 60}), empty({0, 1ull << 60}))["x"].heads);
}

// --- What is not there -------------------------------------------------------

TEST_F(DumpComparisonTest, AnAbsentTensorIsADifferenceUnlessByDesign) {
  const Tensors full = Tensors().F32("x", {1}).F32("scores", {2});
  const auto without = [](const std::string& not_materialised) {
    return Tensors().F32("x", {1}).Meta("not_materialised", not_materialised);
  };
  EXPECT_EQ(Compare(full, without("")).result.verdict(),
            TensorVerdict::kDifferent);
  EXPECT_EQ(Compare(full, without("score scores2")).result.verdict(),
            TensorVerdict::kDifferent);
  const Compared t = Compare(full, without("weights scores"));
  EXPECT_EQ(t.result.verdict(), TensorVerdict::kEqual);
  EXPECT_EQ(t["scores"].verdict(), TensorVerdict::kByDesign);
  EXPECT_EQ(Compare(without("scores"), full).result.verdict(),
            TensorVerdict::kEqual);
  EXPECT_EQ(Compare(without(""), full).result.verdict(),
            TensorVerdict::kDifferent);
  // The file that lacks it must say so, not the other one.
  const Tensors boasting = Tensors()
                               .F32("x", {1})
                               .F32("scores", {2})
                               .Meta("not_materialised", "scores");
  EXPECT_EQ(Compare(boasting, without("")).result.verdict(),
            TensorVerdict::kDifferent);
  // What is there is compared, whatever the metadata say.
  EXPECT_EQ(Compare(boasting, Tensors().F32("x", {1}).F32("scores", {3}))
                .result.verdict(),
            TensorVerdict::kDifferent);
}

TEST_F(DumpComparisonTest, RefusesToCompareNothing) {
  const auto error = [&](const Tensors& a, const Tensors& b) {
    return ErrorOf([&] { Compare(a, b); });
  };
  EXPECT_TRUE(Has(error(Tensors(), Tensors()), "a tensor to compare"));
  EXPECT_TRUE(Has(
      error(Tensors().F32("x", {1}), Tensors().Meta("not_materialised", "x")),
      "a tensor to compare"));
}

TEST_F(DumpComparisonTest, OtherShapesAndDtypesAreDifferences) {
  const auto verdict = [&](Shape a, Shape b) {
    const Compared t = Compare(Tensors().F32("x", a, {1, 2, 3, 4}),
                               Tensors().F32("x", b, {1, 2, 3, 4}), 1.0);
    EXPECT_EQ(t["x"].compared, 0u);
    EXPECT_EQ(t["x"].mismatch,
              StrCat("shape ", ShapeText(a), " against ", ShapeText(b)));
    return t.result.verdict();
  };
  EXPECT_EQ(verdict({2, 2}, {4}), TensorVerdict::kDifferent);
  EXPECT_EQ(verdict({1, 4}, {4, 1}), TensorVerdict::kDifferent);
  EXPECT_EQ(verdict({4}, {1, 4}), TensorVerdict::kDifferent);
  const Compared t = Compare(Tensors().F32("x", {1}), Tensors().I32("x", {1}));
  EXPECT_EQ(t["x"].verdict(), TensorVerdict::kDifferent);
  EXPECT_EQ(t["x"].mismatch, "dtype F32 against I32");
  EXPECT_FALSE(t["x"].error);
}

TEST_F(DumpComparisonTest, ComparesTheStepsThatBothHave) {
  const auto file = [](std::vector<float> values) {
    const std::uint64_t steps = values.size() / 2;
    return Tensors()
        .F32("x", {steps, 2}, values)
        .Meta("axes.x", "step,element");
  };
  const Compared t = Compare(file({1, 2, 3, 4, 5, 6}), file({1, 2, 3, 5}));
  EXPECT_EQ(t["x"].verdict(), TensorVerdict::kDifferent);
  EXPECT_EQ(t["x"].compared, 4u);
  EXPECT_EQ(t["x"].differing, 1u);
  EXPECT_EQ(PlaceText(t["x"], *t["x"].first), "step 1, element 1");
  ASSERT_EQ(t.result.notes.size(), 1u);
  EXPECT_EQ(t.result.notes[0],
            "x has 3 steps in A and 2 in B: what both have is compared.");
  // Equal as far as they go is still not the same.
  const Compared prefix = Compare(file({1, 2}), file({1, 2, 3, 4}), 1.0);
  EXPECT_EQ(prefix["x"].differing, 0u);
  EXPECT_EQ(prefix.result.verdict(), TensorVerdict::kDifferent);
  EXPECT_EQ(prefix.result.first_difference()->name, "x");
  // The place in a longer file's last steps, where only its shape counts.
  const Compared longer = Compare(file({1, 2, 3, 4}), file({1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(PlaceText(longer["x"], *longer["x"].first), "step 1, element 1");
}

TEST_F(DumpComparisonTest, EmptyTensorsAreEqual) {
  const Tensors file = Tensors().F32("x", {0, 3}, {}).F32("y", {1});
  const Compared t = Compare(file, file, 0.1);
  EXPECT_EQ(t.result.verdict(), TensorVerdict::kEqual);
  EXPECT_EQ(t["x"].error->max_abs(), 0);
  const Compared other = Compare(
      file, Tensors().F32("x", {2, 3}, {1, 2, 3, 4, 5, 6}).F32("y", {1}));
  EXPECT_EQ(other["x"].verdict(), TensorVerdict::kDifferent);
  EXPECT_EQ(other["x"].compared, 0u);
}

// --- Settings and notes ------------------------------------------------------

TEST_F(DumpComparisonTest, OtherSettingsAreTold) {
  const Compared t = Compare(Tensors()
                                 .F32("x", {1})
                                 .Meta("stage", "three_pass")
                                 .Meta("seed", "1")
                                 .Meta("depth", "0.5")
                                 .Meta("axes.x", "step")
                                 .Meta("not_materialised", ""),
                             Tensors()
                                 .F32("x", {1})
                                 .Meta("stage", "online_softmax")
                                 .Meta("seed", "1")
                                 .Meta("kv", "f32")
                                 .Meta("not_materialised", "scores"));
  EXPECT_EQ(t.result.verdict(), TensorVerdict::kEqual);
  ASSERT_EQ(t.result.settings.size(), 3u);
  EXPECT_EQ(t.result.settings[0].key, "depth");
  EXPECT_EQ(t.result.settings[0].a, "0.5");
  EXPECT_FALSE(t.result.settings[0].b);
  EXPECT_EQ(t.result.settings[1].key, "kv");
  EXPECT_FALSE(t.result.settings[1].a);
  EXPECT_EQ(t.result.settings[2].key, "stage");
  EXPECT_EQ(t.result.settings[2].b, "online_softmax");
}

TEST_F(DumpComparisonTest, TellsWhenTheRunsReadOtherTokens) {
  const auto notes = [&](std::vector<std::int32_t> prompt,
                         std::vector<std::int32_t> tokens) {
    return Compare(
               Tensors().I32("prompt_tokens", {1, 2}).I32("tokens", {5, 6, 7}),
               Tensors().I32("prompt_tokens", prompt).I32("tokens", tokens))
        .result.notes;
  };
  using Notes = std::vector<std::string>;
  EXPECT_EQ(notes({1, 2}, {5, 6, 7}), Notes());
  EXPECT_EQ(notes({1, 2}, {5, 9, 7}),
            Notes{"The answers part at token 1: from step 1 on the two runs "
                  "do not read the same tokens."});
  EXPECT_EQ(notes({1, 3}, {5, 9, 7}),
            Notes{"The prompts are not the same, so everything else may "
                  "differ too."});
}

}  // namespace
}  // namespace kvlab
