/// \file
/// What a student may change in a starter, and what may not stand in it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

/// A line of a student's file, and what is wrong with it.
struct SourceFault {
  int line = 0;  ///< from 1
  std::string text;
};

/// Between two comments `// [yours]` the student writes; everything else must
/// be as in the starter (blanks at the end of a line and CR aside). Returns the
/// first line that is not.
std::optional<SourceFault> ChangedOutsideYours(std::string_view starter,
                                               std::string_view student);

/// The first line that has one of the words as a whole, outside of comments.
std::optional<SourceFault> ForbiddenWord(std::string_view student,
                                         const std::vector<std::string>& words);

}  // namespace kvlab
