/// \file
/// Aligned columns of text.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvlab {

/// A table printed in aligned columns. Cells are UTF-8; a code point counts as
/// one column, so text in wide scripts belongs into the last column.
class TextTable {
 public:
  /// `columns`: one letter per column, 'l' aligned left, 'r' right.
  explicit TextTable(std::string columns) : columns_(std::move(columns)) {}

  /// A row of as many cells as there are columns.
  void Add(std::vector<std::string> cells);

  /// All rows, each indented by `indent` spaces, two spaces between columns,
  /// none at the end of a line.
  std::string Text(int indent = 2) const;

 private:
  std::string columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// `text` in lines of at most `width` columns (longer words stand alone), each
/// after `indent` spaces.
std::string Wrapped(const std::string& text, std::size_t width, int indent = 0);

}  // namespace kvlab
