#include "common/lab/text_table.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/base/error.h"

namespace kvlab {
namespace {

/// Code points of `text`: all bytes but those that continue one.
std::size_t Width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(),
      [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

void TextTable::Add(std::vector<std::string> cells) {
  KVLAB_CHECK_EQ(cells.size(), columns_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::Text(int indent) const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], Width(row[i]));
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string fill(widths[i] - Width(row[i]), ' ');
      line += columns_[i] == 'r' ? fill + row[i] : row[i] + fill;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

std::string Wrapped(const std::string& text, std::size_t width, int indent) {
  std::istringstream words(text);
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  std::string wrapped, line = margin;
  for (std::string word; words >> word;) {
    if (line.size() > margin.size() && line.size() + 1 + word.size() > width) {
      wrapped += line + '\n';
      line = margin;
    }
    line += (line.size() > margin.size() ? " " : "") + word;
  }
  return wrapped + line + '\n';
}

}  // namespace kvlab
