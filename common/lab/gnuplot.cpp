#include "common/lab/gnuplot.h"

#include <optional>

#include "common/base/error.h"
#include "common/lab/child_process.h"

namespace kvlab {

std::string SvgPlotHead(std::uint64_t width, std::uint64_t height) {
  return StrCat("set terminal svg size ", width, ",", height,
                " font 'DejaVu Sans,12' dynamic\n", R"gp(set encoding utf8
set border 0
set tics textcolor rgb "#475467"
set title font ",13" textcolor rgb "#101828" noenhanced
set xlabel textcolor rgb "#344054"
set ylabel textcolor rgb "#344054"
)gp");
}

std::string PlotQuoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "''" : std::string(1, c);
  return quoted + "'";
}

bool HaveGnuplot() {
  return RunChild({"gnuplot", "--version"}, "").has_value();
}

std::string DrawSvg(const std::string& script) {
  // Without the user's own start-up file, so that all get the same picture.
  const std::optional<ChildResult> result =
      RunChild({"gnuplot", "--default-settings"}, script);
  if (!result) Fail("gnuplot: ", kNoGnuplot);
  if (result->exit_code != 0 ||
      result->out.find("</svg>") == std::string::npos) {
    Fail("gnuplot: expected a picture and exit code 0, found exit code ",
         result->exit_code, result->err.empty() ? "" : ": ",
         Printable(result->err, 200));
  }
  return result->out;
}

}  // namespace kvlab
