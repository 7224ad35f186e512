/// \file
/// Comparing two safetensors files, tensor by tensor and element by element.
///
/// Without a tolerance two elements are equal if all their bits are. With a
/// tolerance X a tensor of floats passes if
///
///     max|a - b| <= X * max|b|        over its elements, b the second file
///
/// and every other tensor must still be equal. These are differences whatever
/// the tolerance: NaN, even against NaN; an infinity against anything but the
/// same infinity; another dtype or shape; a tensor that one file lacks, unless
/// that file's `__metadata__.not_materialised` (names separated by spaces)
/// says that it is not there by design. Dtypes that are no numbers here (F8,
/// complex) are compared byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/loader/safetensors.h"

namespace kvlab {

/// Square root of a sum of squares that neither overflows nor vanishes on the
/// way, as a plain sum would for doubles such as 1e200.
class Norm {
 public:
  /// `x`: finite.
  void Add(double x);
  double Value() const;

 private:
  double scale_ = 0;  // largest |x| so far
  double sum_ = 0;    // of (x / scale)^2
};

/// How far a set of numbers is from a reference.
class ErrorMeasure {
 public:
  /// One element: |a - b|, and b. NaN stands for a NaN on either side.
  void Add(double difference, double reference);

  /// max|a - b|; NaN if any element was, infinity if any difference was.
  double max_abs() const;
  /// norm(a - b) / norm(b); 0 if both are zero. NaN, infinity as above.
  double relative_l2() const;
  std::uint64_t nan() const { return nan_; }
  std::uint64_t infinite() const { return infinite_; }

 private:
  double MarkUnless(double finite) const;

  double max_abs_ = 0;
  Norm difference_, reference_;
  std::uint64_t nan_ = 0, infinite_ = 0;
};

/// What came out for one tensor.
enum class TensorVerdict { kEqual, kWithin, kByDesign, kDifferent };

/// The errors of a tensor that has axes "layer" and "head".
struct HeadErrors {
  std::uint64_t layers = 0;
  std::uint64_t heads = 0;
  std::vector<ErrorMeasure> cells;  ///< [layers][heads]
};

/// One tensor of the two files. Indices are row-major; where the shapes differ
/// in their first axis only (runs of different length), the part that both have
/// is compared, and an index means the same element in both.
struct TensorComparison {
  std::string name;
  const TensorInfo* a = nullptr;  ///< nullptr if the file lacks the tensor
  const TensorInfo* b = nullptr;
  bool by_design = false;  ///< the file that lacks it says so
  std::string mismatch;    ///< of dtype or shape, in words; "" if there is none
  std::vector<std::string> axes;  ///< a name for each, or empty

  std::uint64_t compared = 0;            ///< elements
  std::uint64_t differing = 0;           ///< not the same bits, or NaN
  std::uint64_t beyond = 0;              ///< of these, over the tolerance
  std::optional<std::uint64_t> first;    ///< the first of `beyond`
  std::optional<std::uint64_t> largest;  ///< largest |a - b|; a NaN before all
  double allowed = 0;                    ///< X * max|b|
  std::optional<ErrorMeasure> error;     ///< if the dtype is a number's
  std::optional<std::uint64_t> max_ulp;  ///< if it is a float's; finite pairs
  std::optional<HeadErrors> heads;

  TensorVerdict verdict() const;
};

/// A key of `__metadata__` whose value is not the same in both files.
struct SettingDifference {
  std::string key;
  std::optional<std::string> a, b;  ///< absent where the file has no such key
};

/// Two files. Its tensors point into them: they must live as long, and may be
/// moved but not copied.
struct DumpComparison {
  /// In the order of the first file; then those that only the second has.
  std::vector<TensorComparison> tensors;
  /// Information, no difference in themselves: two stages are meant to be run
  /// with different settings. Without "axes.*" and "not_materialised".
  std::vector<SettingDifference> settings;
  /// Sentences that say why differences may have to be expected.
  std::vector<std::string> notes;

  std::size_t Count(TensorVerdict verdict) const;
  /// kDifferent if any tensor is, else kWithin if any is, else kEqual.
  TensorVerdict verdict() const;
  /// The first tensor that is different, or nullptr.
  const TensorComparison* first_difference() const;
};

/// Compares two open files. `tolerance`: X as above, finite and not negative.
/// Throws Error if they have no tensor that could be compared.
DumpComparison CompareDumps(const SafetensorsFile& a, const SafetensorsFile& b,
                            std::optional<double> tolerance);

/// Place of an element along each axis.
std::vector<std::uint64_t> PlaceOf(const TensorComparison& tensor,
                                   std::uint64_t index);

/// The same in words: "step 0, layer 2, head 1, element 17", or "[0, 2, 1, 17]"
/// where the axes have no names.
std::string PlaceText(const TensorComparison& tensor, std::uint64_t index);

/// An element as text from which its exact value can be read back: "0.1",
/// "-0.0", "nan", "42"; the bytes as "0x3F" if the dtype is no number's.
std::string ElementText(const TensorInfo& tensor, std::uint64_t index);

}  // namespace kvlab
