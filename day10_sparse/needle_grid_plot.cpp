/// The pictures of needle_grid_report.h.
#include <algorithm>

#include "common/base/error.h"
#include "common/base/text.h"
#include "common/lab/gnuplot.h"
#include "day10_sparse/needle_grid_cells.h"

namespace kvlab {
namespace {

/// Panels side by side, in reading order.
struct Panels {
  std::size_t columns;
  std::size_t rows;
};

Panels PanelsFor(std::size_t count, std::size_t most_columns) {
  const std::size_t columns = std::clamp<std::size_t>(count, 1, most_columns);
  return {columns, (count + columns - 1) / columns};
}

/// In pixels.
struct PanelSize {
  std::size_t width;
  std::size_t height;
  std::size_t below;        ///< the lowest panels
  std::size_t least_width;  ///< of the picture
};

/// A picture of panels, each this large, with room for a heading above, a key
/// below, and the numbers at the axes between.
std::string PanelPlot(const Panels& panels, const PanelSize& size,
                      const std::string& heading, const std::string& subtitle) {
  constexpr std::size_t kLeft = 80, kRight = 30, kTop = 95;
  constexpr std::size_t kBetweenX = 80, kBetweenY = 85;
  const std::size_t width = std::max<std::size_t>(
      size.least_width, kLeft + kRight + panels.columns * size.width +
                            (panels.columns - 1) * kBetweenX);
  const std::size_t height = kTop + size.below + panels.rows * size.height +
                             (panels.rows - 1) * kBetweenY;
  const auto x = [&](std::size_t pixels) {
    return static_cast<double>(pixels) / static_cast<double>(width);
  };
  const auto y = [&](std::size_t pixels) {
    return static_cast<double>(pixels) / static_cast<double>(height);
  };
  return StrCat(SvgPlotHead(width, height), "set multiplot layout ",
                panels.rows, ",", panels.columns, " margins screen ", x(kLeft),
                ",", 1 - x(kRight), ",", y(size.below), ",", 1 - y(kTop),
                " spacing screen ", x(kBetweenX), ",", y(kBetweenY), " title ",
                PlotQuoted(heading), " . \"\\n\" . ", PlotQuoted(subtitle),
                " font ',14' textcolor rgb '#101828' noenhanced\n");
}

std::string Tics(const char* axis, const std::vector<std::string>& names) {
  std::string tics;
  for (std::size_t i = 0; i < names.size(); ++i) {
    tics += StrCat(i == 0 ? "" : ", ", PlotQuoted(names[i]), ' ', i);
  }
  return StrCat("set ", axis, "tics (", tics, ") scale 0\n");
}

template <typename T>
std::vector<std::string> Texts(const std::vector<T>& values) {
  std::vector<std::string> texts;
  for (const T& value : values) texts.push_back(StrCat(value));
  return texts;
}

/// An arm's line: colours of Okabe and Ito, and a mark for who sees none.
struct ArmStyle {
  const char* color;
  int point;
  int width;
};

ArmStyle StyleOf(BlockArm arm) {
  switch (arm) {
    case BlockArm::kArticle:
      return {"#D55E00", 7, 3};
    case BlockArm::kOracle:
      return {"#101828", 6, 1};
    case BlockArm::kProbe:
      return {"#0072B2", 5, 2};
    case BlockArm::kImportance:
      return {"#CC79A7", 9, 2};
    case BlockArm::kRecency:
      return {"#009E73", 13, 2};
    case BlockArm::kRandom:
      break;
  }
  return {"#98a2b3", 2, 2};
}

}  // namespace

std::string GridHeatmapScript(const GridResults& results,
                              const std::string& subtitle) {
  const GridSettings& s = results.settings;
  const auto found = std::ranges::find(s.arms, BlockArm::kArticle);
  KVLAB_CHECK(found != s.arms.end());
  const auto article = static_cast<std::size_t>(found - s.arms.begin());
  const Panels panels = PanelsFor(s.ks.size(), 3);
  std::string script = StrCat(
      PanelPlot(
          panels,
          {.width = std::clamp<std::size_t>(56 * s.contexts.size(), 180, 600),
           .height = std::clamp<std::size_t>(36 * s.depths.size(), 110, 600),
           .below = 75,
           .least_width = 640},
          "The needle found, in % of the prompts, by the article's way",
          subtitle + "; all: k blocks are all there are"),
      R"gp(set palette defined (0 "#00224e", 0.25 "#434e6c", 0.5 "#7d7c78", \
  0.75 "#bcae6c", 1 "#fee838")
set cbrange [0:100]
set style fill solid noborder
unset key
unset colorbox
)gp",
      "set xrange [-0.5:", s.contexts.size(), "-0.5]\nset yrange [",
      s.depths.size(), "-0.5:-0.5]\n", Tics("x", Texts(s.contexts)),
      Tics("y", Texts(s.depths)));
  for (std::size_t k = 0; k < s.ks.size(); ++k) {
    std::string cells, labels;
    for (std::size_t x = 0; x < s.contexts.size(); ++x) {
      for (std::size_t y = 0; y < s.depths.size(); ++y) {
        const double percent =
            100 * SparseCell(results, article, k, [&](const UnitId& id) {
                    return id.context == s.contexts[x] &&
                           id.depth == s.depths[y];
                  }).recall();
        cells += StrCat(x, ' ', y, ' ', percent, '\n');
        labels += StrCat(x, ' ', y, " \"", Fixed(percent, 0),
                         RanExact(s, s.contexts[x], s.ks[k]) ? " all" : "",
                         "\" ", percent >= 60 ? "0x101828" : "0xffffff", '\n');
      }
    }
    const bool lowest = k + panels.columns >= s.ks.size();
    script += StrCat(
        "set title ", PlotQuoted(StrCat("k = ", s.ks[k])), "\n",
        k % panels.columns == 0 ? "set ylabel 'depth of the needle'\n"
                                : "set ylabel ' '\n",
        lowest ? "set xlabel 'context (tokens)'\n" : "set xlabel ' '\n",
        "$cells", k, " << END\n", cells, "END\n$labels", k, " << END\n", labels,
        "END\nplot $cells", k,
        " using 1:2:(0.48):(0.47):3 with boxxyerror linecolor palette, "
        "$labels",
        k, " using 1:2:3:4 with labels font ',11' textcolor rgb variable\n");
  }
  return script + "unset multiplot\n";
}

std::string GridArmsScript(const GridResults& results,
                           const std::string& subtitle) {
  const GridSettings& s = results.settings;
  const Panels panels = PanelsFor(s.contexts.size(), 2);
  std::string script = StrCat(
      PanelPlot(panels,
                {.width = 310, .height = 165, .below = 110, .least_width = 800},
                "The needle found, by what fills the k places", subtitle),
      R"gp(set grid ytics lt 1 lw 1 lc rgb "#e4e7ec"
set yrange [-4:104]
set ytics 0,25,100 format "%g %%" scale 0
)gp",
      "set xrange [-0.3:", s.ks.size(), "-0.7]\n", Tics("x", Texts(s.ks)));
  for (std::size_t c = 0; c < s.contexts.size(); ++c) {
    const auto counts = [&](const UnitId& id) {
      return id.context == s.contexts[c];
    };
    const double exact = 100 * ExactCell(results, counts).recall();
    std::string plots =
        StrCat("plot ", exact, " with lines lw 1 dt 2 lc rgb '#667085' ",
               c == 0 ? "title 'exact'" : "notitle");
    for (std::size_t arm = 0; arm < s.arms.size(); ++arm) {
      std::string points;
      for (std::size_t k = 0; k < s.ks.size(); ++k) {
        if (RanExact(s, s.contexts[c], s.ks[k])) continue;
        points += StrCat(
            k, ' ', 100 * SparseCell(results, arm, k, counts).recall(), '\n');
      }
      // gnuplot refuses to plot no data.
      if (points.empty()) points = "0 NaN\n";
      const ArmStyle style = StyleOf(s.arms[arm]);
      script += StrCat("$arm", c, "_", arm, " << END\n", points, "END\n");
      plots += StrCat(
          ", $arm", c, "_", arm, " using 1:2 with linespoints pt ", style.point,
          " ps 0.7 lw ", style.width, " lc rgb '", style.color, "' ",
          c == 0 ? "title " : "notitle",
          c == 0 ? PlotQuoted(std::string(BlockArmName(s.arms[arm]))) : "");
    }
    const bool lowest = c + panels.columns >= s.contexts.size();
    script += StrCat(
        "set title ",
        PlotQuoted(StrCat(s.contexts[c], " tokens, ",
                          BlockCount(s.contexts[c], s.sparse.block_tokens),
                          " blocks")),
        "\nset xlabel ", lowest ? "'k (blocks)'" : "''", "\n",
        c == 0 ? "set key at screen 0.5, screen 0.02 center bottom vertical "
                 "maxrows 1 width -1.5 samplen 1.5 textcolor rgb '#344054'\n"
               : "unset key\n",
        plots, '\n');
  }
  return script + "unset multiplot\n";
}

}  // namespace kvlab
