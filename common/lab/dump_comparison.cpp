#include "common/lab/dump_comparison.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdio>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <type_traits>

#include "common/base/error.h"
#include "common/base/float16.h"
#include "common/loader/json.h"

namespace kvlab {
namespace {

/// Most pairs of layer and head that errors are collected for. The largest
/// models have some 6,000; a hostile shape could ask for as many as elements.
constexpr std::uint64_t kMaxHeadCells = 65'536;

/// Most axes that a place is told along; beyond, a plain index is shorter.
constexpr std::size_t kMaxAxes = 16;

// --- Elements ----------------------------------------------------------------

/// Calls `work` with a zero of the C++ type of `dtype`; returns false if that
/// is no number that we know.
template <typename Work>
bool WithElementType(Dtype dtype, Work&& work) {
  switch (dtype) {
    case Dtype::kF64:
      work(double{});
      break;
    case Dtype::kF32:
      work(float{});
      break;
    case Dtype::kF16:
      work(Float16{});
      break;
    case Dtype::kBF16:
      work(BFloat16{});
      break;
    case Dtype::kI64:
      work(std::int64_t{});
      break;
    case Dtype::kI32:
      work(std::int32_t{});
      break;
    case Dtype::kI16:
      work(std::int16_t{});
      break;
    case Dtype::kI8:
      work(std::int8_t{});
      break;
    case Dtype::kU64:
      work(std::uint64_t{});
      break;
    case Dtype::kU32:
      work(std::uint32_t{});
      break;
    case Dtype::kU16:
      work(std::uint16_t{});
      break;
    case Dtype::kU8:
    case Dtype::kBool:
      work(std::uint8_t{});
      break;
    default:
      return false;
  }
  return true;
}

/// memcpy, since elements may lie at any address.
template <typename T>
T ElementAt(std::span<const std::byte> bytes, std::uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

double ToDouble(double x) { return x; }
double ToDouble(float x) { return x; }
double ToDouble(Float16 x) { return ToFloat(x); }
double ToDouble(BFloat16 x) { return ToFloat(x); }
double ToDouble(std::integral auto x) { return static_cast<double>(x); }

std::uint64_t Bits(double x) { return std::bit_cast<std::uint64_t>(x); }
std::uint64_t Bits(float x) { return std::bit_cast<std::uint32_t>(x); }
std::uint64_t Bits(Float16 x) { return x.bits; }
std::uint64_t Bits(BFloat16 x) { return x.bits; }
std::uint64_t Bits(std::integral auto x) {
  return static_cast<std::uint64_t>(x);
}

/// |a - b|; 0 for two equal infinities, NaN for a NaN on either side.
template <typename T>
double Difference(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    // As integers: doubles cannot tell 2^53 from 2^53 + 1.
    return ToDouble(a > b ? Bits(a) - Bits(b) : Bits(b) - Bits(a));
  } else {
    const double x = ToDouble(a), y = ToDouble(b);
    return x == y ? 0 : std::fabs(x - y);
  }
}

/// Floats of T's format from a to b, one step for each: +0 and -0 are the same.
template <typename T>
std::uint64_t UlpDistance(T a, T b) {
  constexpr std::uint64_t kSign = std::uint64_t{1} << (8 * sizeof(T) - 1);
  const std::uint64_t x = Bits(a) & ~kSign, y = Bits(b) & ~kSign;
  if ((Bits(a) & kSign) != (Bits(b) & kSign)) return x + y;
  return x > y ? x - y : y - x;
}

// --- One tensor --------------------------------------------------------------

/// Where layer and head stand in a row-major index.
struct HeadAxes {
  std::uint64_t layers, layer_stride, heads, head_stride;

  std::size_t Cell(std::uint64_t index) const {
    return static_cast<std::size_t>(index / layer_stride % layers * heads +
                                    index / head_stride % heads);
  }
};

/// Nothing if the tensor has no such axes, no elements, or too many heads.
std::optional<HeadAxes> FindHeadAxes(const TensorComparison& t) {
  HeadAxes found{0, 0, 0, 0};
  std::uint64_t stride = 1;
  for (std::size_t i = t.axes.size(); i-- > 0;) {
    const std::uint64_t size = std::min(t.a->shape[i], t.b->shape[i]);
    if (size == 0) return std::nullopt;
    if (t.axes[i] == "layer") found.layers = size, found.layer_stride = stride;
    if (t.axes[i] == "head") found.heads = size, found.head_stride = stride;
    stride *= size;
  }
  if (found.layers == 0 || found.heads == 0 ||
      found.layers > kMaxHeadCells / found.heads) {
    return std::nullopt;
  }
  return found;
}

std::optional<HeadErrors> MakeHeads(const std::optional<HeadAxes>& axes) {
  if (!axes) return std::nullopt;
  HeadErrors heads{axes->layers, axes->heads, {}};
  heads.cells.resize(static_cast<std::size_t>(axes->layers * axes->heads));
  return heads;
}

/// The largest finite |b| of the elements that are compared.
template <typename T>
double LargestReference(const TensorComparison& t) {
  double largest = 0;
  for (std::uint64_t i = 0; i < t.compared; ++i) {
    const double size = std::fabs(ToDouble(ElementAt<T>(t.b->bytes, i)));
    if (std::isfinite(size)) largest = std::max(largest, size);
  }
  return largest;
}

/// Counts a pair of elements that are not equal. `worst`: the largest
/// difference so far, at `t->largest`.
void CountDifference(TensorComparison* t, std::uint64_t index,
                     double difference, bool exact, double* worst) {
  ++t->differing;
  // The first NaN stays: nothing is larger, and no comparison with it is true.
  if (!t->largest || !(std::isnan(*worst) || difference <= *worst)) {
    t->largest = index;
    *worst = difference;
  }
  // A large tolerance times a large b may be infinite; no infinity passes.
  const bool within =
      !exact && difference <= t->allowed && std::isfinite(difference);
  if (!within && t->beyond++ == 0) t->first = index;
}

/// Compares the first `t->compared` elements as numbers of type T.
template <typename T>
void CompareNumbers(TensorComparison* t, std::optional<double> tolerance) {
  constexpr bool kFloat = !std::is_integral_v<T>;
  const bool exact = !kFloat || !tolerance;
  if (!exact) t->allowed = *tolerance * LargestReference<T>(*t);
  const std::optional<HeadAxes> head_axes = FindHeadAxes(*t);
  t->heads = MakeHeads(head_axes);
  t->error.emplace();
  if (kFloat) t->max_ulp = 0;
  double worst = 0;
  for (std::uint64_t i = 0; i < t->compared; ++i) {
    const T a = ElementAt<T>(t->a->bytes, i);
    const T b = ElementAt<T>(t->b->bytes, i);
    const double difference = Difference(a, b);
    t->error->Add(difference, ToDouble(b));
    if (head_axes) {
      t->heads->cells[head_axes->Cell(i)].Add(difference, ToDouble(b));
    }
    if (Bits(a) == Bits(b) && !std::isnan(difference)) continue;
    CountDifference(t, i, difference, exact, &worst);
    if (kFloat && std::isfinite(difference)) {
      t->max_ulp = std::max(*t->max_ulp, UlpDistance(a, b));
    }
  }
}

/// Compares the first `t->compared` elements of a dtype that is no number's.
void CompareBytes(TensorComparison* t) {
  const auto size = static_cast<std::size_t>(DtypeBits(t->a->dtype)) / 8;
  for (std::uint64_t i = 0; i < t->compared; ++i) {
    if (std::memcmp(t->a->bytes.data() + i * size,
                    t->b->bytes.data() + i * size, size) != 0) {
      if (t->differing++ == 0) t->first = i;
    }
  }
  t->beyond = t->differing;
}

std::vector<std::string> Split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

/// The names of the tensor's axes as either file's metadata gives them; empty
/// if neither does, or if they are not one for each axis.
std::vector<std::string> AxisNames(const SafetensorsFile& a,
                                   const SafetensorsFile& b,
                                   const TensorInfo& tensor) {
  for (const SafetensorsFile* file : {&a, &b}) {
    const auto found = file->metadata().find("axes." + tensor.name);
    if (found == file->metadata().end()) continue;
    std::vector<std::string> names = Split(found->second, ',');
    if (names.size() == tensor.shape.size() && names.size() <= kMaxAxes) {
      for (std::string& name : names) name = Printable(name, 24);
      return names;
    }
  }
  return {};
}

/// Writes what differs in kind to `t->mismatch` and what can be compared to
/// `t->compared`.
void CompareShapes(TensorComparison* t) {
  const TensorInfo &a = *t->a, &b = *t->b;
  if (a.dtype != b.dtype) {
    t->mismatch =
        StrCat("dtype ", DtypeName(a.dtype), " against ", DtypeName(b.dtype));
    return;
  }
  t->compared = std::min(a.Elements(), b.Elements());
  if (a.shape == b.shape) return;
  t->mismatch =
      StrCat("shape ", ShapeText(a.shape), " against ", ShapeText(b.shape));
  // Row-major: the first rows of the longer one are the same elements.
  if (a.shape.empty() || b.shape.empty() ||
      !std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1,
                  b.shape.end())) {
    t->compared = 0;
  }
}

void CompareTensor(const SafetensorsFile& a, const SafetensorsFile& b,
                   std::optional<double> tolerance, TensorComparison* t) {
  t->axes = AxisNames(a, b, *t->a);
  CompareShapes(t);
  if (!t->mismatch.empty() && t->compared == 0) return;
  const bool number = WithElementType(t->a->dtype, [&](auto zero) {
    CompareNumbers<decltype(zero)>(t, tolerance);
  });
  if (!number) CompareBytes(t);
}

// --- Two files ---------------------------------------------------------------

bool NotMaterialised(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.metadata().find("not_materialised");
  if (found == file.metadata().end()) return false;
  const std::vector<std::string> names = Split(found->second, ' ');
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<SettingDifference> CompareSettings(const SafetensorsFile& a,
                                               const SafetensorsFile& b) {
  std::set<std::string> keys;
  for (const SafetensorsFile* file : {&a, &b}) {
    for (const auto& [key, value] : file->metadata()) keys.insert(key);
  }
  std::vector<SettingDifference> differences;
  for (const std::string& key : keys) {
    if (key.starts_with("axes.") || key == "not_materialised") continue;
    const auto value = [&](const SafetensorsFile& file) {
      const auto found = file.metadata().find(key);
      return found == file.metadata().end() ? std::nullopt
                                            : std::optional(found->second);
    };
    if (value(a) != value(b)) differences.push_back({key, value(a), value(b)});
  }
  return differences;
}

/// The tensor of that name if both files have it, else nullptr.
const TensorComparison* FindInBoth(const DumpComparison& comparison,
                                   std::string_view name) {
  for (const TensorComparison& t : comparison.tensors) {
    if (t.name == name && t.a != nullptr && t.b != nullptr) return &t;
  }
  return nullptr;
}

/// What makes other differences a matter of course: runs that were not given,
/// or did not choose, the same tokens, or did not go equally far.
std::vector<std::string> Notes(const DumpComparison& comparison) {
  std::vector<std::string> notes;
  const TensorComparison* prompt = FindInBoth(comparison, "prompt_tokens");
  const TensorComparison* tokens = FindInBoth(comparison, "tokens");
  if (prompt != nullptr && prompt->verdict() == TensorVerdict::kDifferent) {
    notes.emplace_back(
        "The prompts are not the same, so everything else may differ too.");
  } else if (tokens != nullptr && tokens->first) {
    notes.push_back(StrCat("The answers part at token ", *tokens->first,
                           ": from step ", *tokens->first,
                           " on the two runs do not read the same tokens."));
  }
  for (const TensorComparison& t : comparison.tensors) {
    if (t.mismatch.empty() || t.compared == 0) continue;
    notes.push_back(StrCat(Printable(t.name), " has ", t.a->shape[0], ' ',
                           t.axes.empty() ? "row" : t.axes[0], "s in A and ",
                           t.b->shape[0],
                           " in B: what both have is compared."));
    break;  // the other tensors say the same
  }
  return notes;
}

/// 9 digits tell all floats apart, 17 all doubles. A point is always there.
std::string FloatText(double value, int digits) {
  if (std::isnan(value)) return "nan";  // printf may add its sign
  char text[40];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  const bool whole = std::string_view(text).find_first_not_of("-0123456789") ==
                     std::string_view::npos;
  return StrCat(text, whole ? ".0" : "");
}

}  // namespace

void Norm::Add(double x) {
  const double size = std::fabs(x);
  if (size == 0) return;
  if (size > scale_) {
    const double ratio = scale_ / size;
    sum_ = 1 + sum_ * ratio * ratio;
    scale_ = size;
  } else {
    const double ratio = size / scale_;
    sum_ += ratio * ratio;
  }
}

double Norm::Value() const { return scale_ * std::sqrt(sum_); }

void ErrorMeasure::Add(double difference, double reference) {
  if (std::isfinite(reference)) reference_.Add(reference);
  if (std::isnan(difference)) {
    ++nan_;
  } else if (std::isinf(difference)) {
    ++infinite_;
  } else {
    difference_.Add(difference);
    max_abs_ = std::max(max_abs_, difference);
  }
}

double ErrorMeasure::MarkUnless(double finite) const {
  if (nan_ > 0) return std::numeric_limits<double>::quiet_NaN();
  return infinite_ > 0 ? std::numeric_limits<double>::infinity() : finite;
}

double ErrorMeasure::max_abs() const { return MarkUnless(max_abs_); }

double ErrorMeasure::relative_l2() const {
  const double difference = difference_.Value();
  return MarkUnless(difference == 0 ? 0 : difference / reference_.Value());
}

TensorVerdict TensorComparison::verdict() const {
  if (a == nullptr || b == nullptr) {
    return by_design ? TensorVerdict::kByDesign : TensorVerdict::kDifferent;
  }
  if (!mismatch.empty() || beyond > 0) return TensorVerdict::kDifferent;
  return differing > 0 ? TensorVerdict::kWithin : TensorVerdict::kEqual;
}

std::size_t DumpComparison::Count(TensorVerdict verdict) const {
  return static_cast<std::size_t>(std::count_if(
      tensors.begin(), tensors.end(),
      [&](const auto& tensor) { return tensor.verdict() == verdict; }));
}

TensorVerdict DumpComparison::verdict() const {
  for (const TensorVerdict v :
       {TensorVerdict::kDifferent, TensorVerdict::kWithin}) {
    if (Count(v) > 0) return v;
  }
  return TensorVerdict::kEqual;
}

const TensorComparison* DumpComparison::first_difference() const {
  for (const TensorComparison& tensor : tensors) {
    if (tensor.verdict() == TensorVerdict::kDifferent) return &tensor;
  }
  return nullptr;
}

DumpComparison CompareDumps(const SafetensorsFile& a, const SafetensorsFile& b,
                            std::optional<double> tolerance) {
  DumpComparison comparison;
  for (const TensorInfo& tensor : a.tensors()) {
    TensorComparison& t = comparison.tensors.emplace_back();
    t.name = tensor.name;
    t.a = &tensor;
    t.b = b.Find(tensor.name);
    if (t.b != nullptr) {
      CompareTensor(a, b, tolerance, &t);
    } else {
      t.by_design = NotMaterialised(b, t.name);
    }
  }
  for (const TensorInfo& tensor : b.tensors()) {
    if (a.Find(tensor.name) != nullptr) continue;
    TensorComparison& t = comparison.tensors.emplace_back();
    t.name = tensor.name;
    t.b = &tensor;
    t.by_design = NotMaterialised(a, t.name);
  }
  // An "equal" that looked at nothing would mislead.
  if (comparison.Count(TensorVerdict::kByDesign) == comparison.tensors.size()) {
    Fail(PathText(a.path()), " and ", PathText(b.path()),
         ": expected a tensor to compare, found none that both have");
  }
  comparison.settings = CompareSettings(a, b);
  comparison.notes = Notes(comparison);
  return comparison;
}

std::vector<std::uint64_t> PlaceOf(const TensorComparison& tensor,
                                   std::uint64_t index) {
  const std::vector<std::uint64_t>& shape = tensor.a->shape;
  if (shape.size() > kMaxAxes) return {index};
  std::vector<std::uint64_t> place(shape.size());
  for (std::size_t i = shape.size(); i-- > 0;) {
    // The shapes of both files agree on all axes but the first, which takes
    // what is left.
    place[i] = i == 0 ? index : index % shape[i];
    index /= shape[i];
  }
  return place;
}

std::string PlaceText(const TensorComparison& tensor, std::uint64_t index) {
  const std::vector<std::uint64_t> place = PlaceOf(tensor, index);
  if (tensor.axes.size() != place.size() || place.empty()) {
    return ShapeText(place);
  }
  std::string text;
  for (std::size_t i = 0; i < place.size(); ++i) {
    text += StrCat(i > 0 ? ", " : "", tensor.axes[i], ' ', place[i]);
  }
  return text;
}

std::string ElementText(const TensorInfo& tensor, std::uint64_t index) {
  std::string text;
  const bool number = WithElementType(tensor.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T value = ElementAt<T>(tensor.bytes, index);
    if constexpr (std::is_integral_v<T>) {
      text = std::to_string(value);
    } else {
      text = FloatText(ToDouble(value), sizeof(T) == 8 ? 17 : 9);
    }
  });
  if (number) return text;
  text = "0x";
  const auto size = static_cast<std::size_t>(DtypeBits(tensor.dtype)) / 8;
  for (std::size_t i = size; i-- > 0;) {  // the most significant first
    char hex[4];
    std::snprintf(
        hex, sizeof hex, "%02X",
        static_cast<unsigned>(
            tensor.bytes[static_cast<std::size_t>(index) * size + i]));
    text += hex;
  }
  return text;
}

}  // namespace kvlab
