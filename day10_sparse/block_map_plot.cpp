/// \file
/// The block map as a picture: the script for gnuplot.
#include <algorithm>
#include <cstdint>

#include "common/base/error.h"
#include "common/lab/gnuplot.h"
#include "day10_sparse/block_map.h"

namespace kvlab {
namespace {

/// Colours of Okabe and Ito, which colour-blind readers can tell apart too, and
/// a grey for what most blocks are.
const char* ColourOf(BlockReason reason) {
  switch (reason) {
    case BlockReason::kImportance:
      return "#E69F00";
    case BlockReason::kProbe:
      return "#0072B2";
    case BlockReason::kRecency:
      return "#009E73";
    case BlockReason::kLowerProbe:
      return "#E4E7EC";
    case BlockReason::kEvictedByRecency:
      return "#CC79A7";
  }
  return "#000000";
}

/// Where everything stands, in pixels and in the units of the axes: a block
/// wide, a row high, row 0 at the top.
struct Layout {
  std::vector<double> y;  ///< [rows]: a layer stands apart from the next one
  double height = 0;      ///< of all rows
  int blocks = 0;
  double pixels_per_block = 0;
  double pixels_per_row = 0;
  int left = 0;      ///< margin in pixels, for the labels of the rows
  double width = 0;  ///< of the picture, in pixels
};

constexpr int kRight = 30, kTop = 84, kBottom = 104;

Layout MakeLayout(const std::vector<MapRow>& rows) {
  Layout layout;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const bool step = i > 0 && rows[i].step != rows[i - 1].step;
    const bool layer = i > 0 && rows[i].layer != rows[i - 1].layer;
    layout.height += step ? 1 : layer ? 0.5 : 0;
    layout.y.push_back(layout.height);
    layout.height += 1;
    layout.blocks =
        std::max(layout.blocks, static_cast<int>(rows[i].blocks.size()));
  }
  // Large enough to point at, no larger than a screen where that can be had.
  layout.pixels_per_block = std::min(24.0, 960.0 / layout.blocks);
  layout.pixels_per_row = std::clamp(1300 / layout.height, 3.0, 16.0);
  layout.left = rows.front().step == rows.back().step ? 130 : 190;
  // A few blocks do not fill the picture: title and legend need the width.
  layout.width = layout.left + kRight +
                 std::max(560.0, layout.blocks * layout.pixels_per_block);
  return layout;
}

/// The cells of one reason as data of gnuplot: x, y, left, right, top, bottom.
std::string Cells(const std::vector<MapRow>& rows, const Layout& layout,
                  const MapSymbol& symbol) {
  // Cells with room for it stand apart; of smaller ones what lies side by side
  // is one, and none is too narrow to be seen. What others pushed aside is the
  // ground that the rest lies on.
  const bool ground = symbol.reason == BlockReason::kLowerProbe;
  const bool apart = layout.pixels_per_block >= 5 && !ground;
  const double gap = apart ? 0.16 : 0;
  const double half_height = layout.pixels_per_row >= 5 ? 0.42 : 0.5;
  std::string cells;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string& blocks = rows[i].blocks;
    for (std::size_t first = 0, next; first < blocks.size(); first = next) {
      next = ground ? blocks.size() : first + 1;
      if (!ground && blocks[first] != symbol.character) continue;
      while (!apart && next < blocks.size() &&
             blocks[next] == symbol.character) {
        ++next;
      }
      const auto wide = static_cast<double>(next - first);
      const double middle = static_cast<double>(first) + (wide - 1) / 2;
      const double half =
          std::max(wide - gap, 1.5 / layout.pixels_per_block) / 2;
      cells += StrCat(middle, ' ', layout.y[i], ' ', middle - half, ' ',
                      middle + half, ' ', layout.y[i] - half_height, ' ',
                      layout.y[i] + half_height, '\n');
    }
  }
  return cells;
}

/// Labels left of the rows: the head's number, and the layer's at the middle of
/// its rows, as far as there is room.
std::string RowLabels(const std::vector<MapRow>& rows, const Layout& layout) {
  const bool steps = rows.front().step != rows.back().step;
  const bool heads = layout.pixels_per_row >= 11;
  std::string script;
  double free_from = -1e9;  // pixels, where the next layer's label may begin
  const auto label = [&](const std::string& text, double y, int right) {
    script += StrCat("set label ", PlotQuoted(text), " at first -0.5, first ",
                     y, " right offset character -", right,
                     ",0 font ',10' textcolor rgb '#475467' noenhanced\n");
  };
  for (std::size_t i = 0, next; i < rows.size(); i = next) {
    for (next = i; next < rows.size() && rows[next].step == rows[i].step &&
                   rows[next].layer == rows[i].layer;
         ++next) {
      if (heads) label(StrCat(rows[next].head), layout.y[next], 1);
    }
    const double middle = (layout.y[i] + layout.y[next - 1]) / 2;
    const double pixel = middle * layout.pixels_per_row;
    if (pixel < free_from) continue;
    free_from = pixel + 12;
    label(StrCat(steps ? StrCat("step ", rows[i].step, ", ") : "", "layer ",
                 rows[i].layer),
          middle, heads ? 5 : 1);
  }
  return script;
}

/// A frame around the needle's blocks, its name above.
std::string NeedleFrame(const MapLegend& legend, const Layout& layout) {
  const auto needle = legend.NeedleBlocks();
  if (!needle) return "";
  // Around narrow blocks it leaves them to be seen.
  const double half = std::max(0.5, 3 / layout.pixels_per_block);
  return StrCat("set object rectangle from first ", needle->first - half,
                ", first -0.8 to first ", needle->last + half, ", first ",
                layout.height - 0.2,
                " front fillstyle empty border rgb '#101828' linewidth 1.2\n"
                "set label 'needle' at first ",
                (needle->first + needle->last) / 2.0,
                ", first -0.8 center offset character 0,0.6 font ',11' "
                "textcolor rgb '#101828'\n");
}

/// The reasons, taken and dropped, at the foot of the picture. All of them,
/// whatever the rows hold, so that pictures can be compared; gnuplot's own key
/// moves with the picture's width.
std::string ReasonKey(const Layout& layout, std::uint64_t height) {
  std::string script;
  const auto label = [&](std::string_view text, double x, double y) {
    script += StrCat("set label '", text, "' at screen ", x / layout.width,
                     ", screen ", y / static_cast<double>(height),
                     " font ',11' textcolor rgb '#344054' noenhanced\n");
  };
  for (const bool taken : {true, false}) {
    const double y = taken ? 36 : 16;
    double x = layout.left;
    label(taken ? "taken" : "dropped", x, y);
    for (const MapSymbol& s : kMapSymbols) {
      if (IsTaken(s.reason) != taken) continue;
      x += x == layout.left ? 70 : 130;
      script += StrCat("set object rectangle center screen ", x / layout.width,
                       ", screen ", y / static_cast<double>(height),
                       " size screen ", 14 / layout.width, ", screen ",
                       10 / static_cast<double>(height),
                       " fillstyle solid noborder fillcolor rgb '",
                       ColourOf(s.reason), "'\n");
      label(ReasonName(s.reason), x + 13, y);
    }
  }
  return script;
}

/// Every so many blocks a number that does not touch the next one.
int TicStep(const Layout& layout) {
  const double room =
      8 * static_cast<double>(StrCat(layout.blocks - 1).size()) + 12;
  int step = 1;
  for (const int next : {2, 5, 10, 20, 50, 100, 200, 500, 1000, 10'000}) {
    if (step * layout.pixels_per_block >= room) break;
    step = next;
  }
  return step;
}

}  // namespace

std::string BlockMapScript(const std::vector<MapRow>& rows,
                           const MapLegend& legend, const std::string& heading,
                           const std::string& subheading) {
  const Layout layout = MakeLayout(rows);
  const double across =
      (layout.width - layout.left - kRight) / layout.pixels_per_block;
  const auto height = static_cast<std::uint64_t>(
      kTop + kBottom + (layout.height + 0.4) * layout.pixels_per_row);
  const auto share = [&](int pixels) {
    return pixels / static_cast<double>(height);
  };
  std::string script = StrCat(
      SvgPlotHead(static_cast<std::uint64_t>(layout.width), height),
      "set title ", PlotQuoted(heading), " . \"\\n\" . ",
      PlotQuoted(subheading), " offset character 0,1\nset lmargin at screen ",
      layout.left / layout.width, "\nset rmargin at screen ",
      1 - kRight / layout.width, "\nset tmargin at screen ", 1 - share(kTop),
      "\nset bmargin at screen ", share(kBottom),
      "\nset xrange [-0.5:", across - 0.5, "]\nset yrange [",
      layout.height - 0.3, ":-0.7]\nset tics scale 0\nset xtics 0,",
      TicStep(layout), ",", layout.blocks - 1,
      "\nunset ytics\nset xlabel 'block of ", legend.block_tokens,
      " tokens'\nset label 'layer, query head' at screen ", 14 / layout.width,
      ", graph 0.5 center rotate",
      " textcolor rgb '#344054'\nset style fill solid noborder\nunset key\n",
      RowLabels(rows, layout), NeedleFrame(legend, layout),
      ReasonKey(layout, height));
  std::string plots;
  const auto add = [&](const MapSymbol& s) {
    const std::string cells = Cells(rows, layout, s);
    if (cells.empty()) return;  // gnuplot refuses to plot no data
    const std::string name = StrCat("$", ReasonName(s.reason));
    script += StrCat(name, " << END\n", cells, "END\n");
    plots += StrCat(plots.empty() ? "plot " : ", ", name,
                    " using 1:2:3:4:5:6 with boxxyerror linecolor rgb '",
                    ColourOf(s.reason), "'");
  };
  for (const bool ground : {true, false}) {
    for (const MapSymbol& s : kMapSymbols) {
      if ((s.reason == BlockReason::kLowerProbe) == ground) add(s);
    }
  }
  return StrCat(script, plots, '\n');
}

}  // namespace kvlab
