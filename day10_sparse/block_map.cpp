#include "day10_sparse/block_map.h"

#include <algorithm>
#include <cstddef>

#include "common/base/error.h"

namespace kvlab {
namespace {

char CharacterOf(std::string_view reason) {
  const auto symbol = std::ranges::find_if(
      kMapSymbols,
      [&](const MapSymbol& s) { return ReasonName(s.reason) == reason; });
  KVLAB_CHECK(symbol != kMapSymbols.end());
  return symbol->character;
}

/// "7", or "7-9".
std::string Numbers(int first, int last) {
  return first == last ? StrCat(first) : StrCat(first, '-', last);
}

/// "block 7", or "blocks 7-9".
std::string Named(const char* what, int first, int last) {
  return StrCat(what, first == last ? " " : "s ", Numbers(first, last));
}

/// lower_probe: what most blocks are.
constexpr char kDropped = '.';

/// Labels stand at every tenth block, so wrapped rows begin at one.
constexpr int kRuler = 10;

/// A label of the map's first two columns, or of the lines above it.
std::string Padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

std::string LegendText(const MapLegend& legend) {
  constexpr std::size_t kLabel = 20;  // as in the report
  std::string taken, dropped;
  for (const MapSymbol& s : kMapSymbols) {
    std::string& list = IsTaken(s.reason) ? taken : dropped;
    list += StrCat(list.empty() ? "" : ", ", s.character, ' ',
                   ReasonName(s.reason));
  }
  std::string text = Padded("taken", kLabel) + taken + '\n' +
                     Padded("dropped", kLabel) + dropped + '\n';
  if (const auto blocks = legend.NeedleBlocks()) {
    text += StrCat(Padded("needle", kLabel), "N ",
                   Named("block", blocks->first, blocks->last), " (",
                   Named("token", legend.needle->first, legend.needle->last),
                   ")\n");
  }
  return text;
}

/// Rows of one step, heads that did the same joined.
struct FoldedRow {
  int layer;
  int first_head;
  int last_head;
  const std::string* blocks;
};

std::vector<FoldedRow> Fold(std::span<const MapRow> rows) {
  std::vector<FoldedRow> folded;
  for (const MapRow& row : rows) {
    FoldedRow* last = folded.empty() ? nullptr : &folded.back();
    if (last != nullptr && last->layer == row.layer &&
        last->last_head + 1 == row.head && *last->blocks == row.blocks) {
      last->last_head = row.head;
    } else {
      folded.push_back({row.layer, row.head, row.head, &row.blocks});
    }
  }
  return folded;
}

/// The numbers of every tenth of the blocks from `first` to before `next`, each
/// above its block, that fit into `width` characters.
std::string Ruler(int first, int next, int width) {
  std::string ruler;
  for (int b = first; b < next; b += kRuler) {
    const std::string number = StrCat(b);
    const auto at = static_cast<std::size_t>(b - first);
    if (at + number.size() > static_cast<std::size_t>(width)) break;
    ruler = Padded(ruler, at) + number;
  }
  return ruler;
}

/// An N above each of these blocks that holds some of the needle.
std::string Marks(const MapLegend& legend, int first, int next) {
  const auto needle = legend.NeedleBlocks();
  std::string marks;
  for (int b = first; b < next; ++b) {
    marks += needle && needle->first <= b && b <= needle->last ? 'N' : ' ';
  }
  return marks;
}

/// True if these blocks are worth no lines: nobody took one, and the needle is
/// not among them.
bool NothingIn(const std::vector<FoldedRow>& rows, const MapLegend& legend,
               int first, int next) {
  const auto end = static_cast<std::size_t>(next);
  return Marks(legend, first, next).find('N') == std::string::npos &&
         std::ranges::all_of(rows, [&](const FoldedRow& row) {
           return row.blocks->find_first_not_of(
                      kDropped, static_cast<std::size_t>(first)) >= end;
         });
}

std::string StepText(std::span<const MapRow> rows, const MapLegend& legend,
                     int columns) {
  const std::vector<FoldedRow> folded = Fold(rows);
  const auto blocks = static_cast<int>(rows[0].blocks.size());
  std::string heads = "head";
  std::size_t layer_width = std::string_view("layer").size();
  std::size_t head_width = heads.size();
  for (const FoldedRow& row : folded) {
    layer_width = std::max(layer_width, StrCat(row.layer).size());
    head_width =
        std::max(head_width, Numbers(row.first_head, row.last_head).size());
  }
  const auto labels = static_cast<int>(layer_width + 2 + head_width + 2);
  int width = std::max(kRuler, columns - labels);
  if (blocks > width) width -= width % kRuler;

  const int position = legend.prompt_tokens + rows[0].step;
  std::string text =
      StrCat("\nstep ", rows[0].step, ", query of token ", position);
  if (position < static_cast<int>(legend.tokens.size())) {
    text += StrCat(" \"", Printable(legend.tokens[position], 24), '"');
  }
  text += StrCat(", over ", blocks, blocks == 1 ? " block" : " blocks", " of ",
                 legend.block_tokens, " tokens\n");
  const auto add = [&](const std::string& layer, const std::string& head,
                       const std::string& row) {
    std::string line = StrCat(Padded(layer, layer_width), "  ",
                              Padded(head, head_width), "  ", row);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  for (int first = 0, next; first < blocks; first = next) {
    next = std::min(first + width, blocks);
    if (first > 0) text += '\n';
    if (NothingIn(folded, legend, first, next)) {
      while (next < blocks &&
             NothingIn(folded, legend, next, std::min(next + width, blocks))) {
        next = std::min(next + width, blocks);
      }
      text += StrCat(Named("block", first, next - 1), ": ", kDropped,
                     " in every row\n");
      continue;
    }
    const std::string marks = Marks(legend, first, next);
    add("layer", "head", Ruler(first, next, width));
    if (marks.find('N') != std::string::npos) add("", "", marks);
    for (const FoldedRow& row : folded) {
      add(StrCat(row.layer), Numbers(row.first_head, row.last_head),
          row.blocks->substr(static_cast<std::size_t>(first),
                             static_cast<std::size_t>(next - first)));
    }
  }
  return text;
}

}  // namespace

std::optional<TokenRange> MapLegend::NeedleBlocks() const {
  if (!needle) return std::nullopt;
  return TokenRange{needle->first / block_tokens, needle->last / block_tokens};
}

void BlockMap::OnSelection(const HeadId& id, int /*block_tokens*/,
                           std::span<const BlockEvent> blocks) {
  const int step = id.position - prompt_tokens_;
  last_step_ = std::max(last_step_, step);
  if (!filter_.Has(id.layer, id.head, step)) return;
  MapRow row{.step = step, .layer = id.layer, .head = id.head, .blocks = {}};
  for (const BlockEvent& block : blocks) {
    row.blocks += CharacterOf(block.reason);
  }
  rows_.push_back(std::move(row));
}

std::string BlockMapText(const std::vector<MapRow>& rows,
                         const MapLegend& legend, int columns) {
  std::string text = LegendText(legend);
  for (std::size_t first = 0, next; first < rows.size(); first = next) {
    next = first + 1;
    while (next < rows.size() && rows[next].step == rows[first].step) ++next;
    text +=
        StepText(std::span(rows).subspan(first, next - first), legend, columns);
  }
  return text;
}

}  // namespace kvlab
