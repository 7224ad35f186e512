#include "common/lab/error_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/base/error.h"
#include "common/lab/gnuplot.h"

namespace kvlab {
namespace {

/// Cells that still have room for their number.
constexpr std::uint64_t kMaxLabelledHeads = 16;
constexpr std::uint64_t kMaxLabelledLayers = 40;

/// Colours: cividis, which colour-blind readers can tell apart too, and the
/// vermilion of Okabe and Ito for what is no number.
constexpr char kStyle[] = R"gp(
set xlabel "query head"
set ylabel "layer"
set palette defined (0 "#00224e", 0.25 "#434e6c", 0.5 "#7d7c78", \
  0.75 "#bcae6c", 1 "#fee838")
set style fill solid noborder
unset key
set tics scale 0
)gp";

std::string Short(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return value == 0 ? "0" : std::isnan(value) ? "nan" : text;
}

/// The cells as data of a gnuplot script, a line each.
struct Cells {
  std::string numbers;  ///< head, layer, error
  std::string marked;   ///< head, layer of NaN and infinity
  std::string labels;   ///< head, layer, text, its colour
};

Cells MakeCells(const HeadErrors& errors, double largest) {
  Cells cells;
  for (std::size_t i = 0; i < errors.cells.size(); ++i) {
    const double error = errors.cells[i].relative_l2();
    const std::string place = StrCat(i % errors.heads, ' ', i / errors.heads);
    if (std::isfinite(error)) {
      cells.numbers += StrCat(place, ' ', error, '\n');
    } else {
      cells.marked += place + '\n';
    }
    const bool bright = largest > 0 && error >= 0.6 * largest;  // and no NaN
    cells.labels += StrCat(place, ' ', Short(error),
                           bright ? " 0x101828\n" : " 0xffffff\n");
  }
  return cells;
}

double LargestFinite(const HeadErrors& errors) {
  double largest = 0;
  for (const ErrorMeasure& cell : errors.cells) {
    const double error = cell.relative_l2();
    if (std::isfinite(error)) largest = std::max(largest, error);
  }
  return largest;
}

}  // namespace

std::string ErrorPlotScript(const HeadErrors& errors,
                            const std::string& heading,
                            const std::string& files) {
  const double largest = LargestFinite(errors);
  const Cells cells = MakeCells(errors, largest);
  const bool labelled =
      errors.heads <= kMaxLabelledHeads && errors.layers <= kMaxLabelledLayers;
  // Large enough for the numbers, never larger than a screen.
  const std::uint64_t width =
      std::clamp<std::uint64_t>(200 + 70 * errors.heads, 620, 1320);
  const std::uint64_t height =
      std::clamp<std::uint64_t>(140 + 34 * errors.layers, 310, 1500);
  std::string script = StrCat(
      SvgPlotHead(width, height), kStyle, "set title ", PlotQuoted(heading),
      " . \"\\n\" . ", PlotQuoted(files), "\nset xrange [-0.5:", errors.heads,
      "-0.5]\nset yrange [-0.5:", errors.layers,
      "-0.5]\nset cbrange [0:", largest > 0 ? largest : 1, "]\n",
      labelled ? "set xtics 1\nset ytics 1\n" : "");
  std::string plots;
  // gnuplot refuses to plot no data.
  const auto add = [&](const std::string& name, const std::string& data,
                       const std::string& how) {
    if (data.empty()) return;
    script += StrCat("$", name, " << END\n", data, "END\n");
    plots += StrCat(plots.empty() ? "plot " : ", ", "$", name, " using ", how);
  };
  add("numbers", cells.numbers,
      "1:2:(0.48):(0.48):3 with boxxyerror linecolor palette");
  add("marked", cells.marked,
      "1:2:(0.48):(0.48) with boxxyerror linecolor rgb '#D55E00'");
  if (labelled) {
    add("labels", cells.labels,
        "1:2:3:4 with labels font ',10' textcolor rgb variable");
  }
  return StrCat(script, plots, '\n');
}

}  // namespace kvlab
