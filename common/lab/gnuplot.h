/// \file
/// Pictures by gnuplot: one look for all of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvlab {

/// What every script begins with: an SVG of this size in pixels, without a
/// background, in the course's font and greys.
std::string SvgPlotHead(std::uint64_t width, std::uint64_t height);

/// `text` as a string of gnuplot, in which only the quote is special.
std::string PlotQuoted(const std::string& text);

/// To be asked before the work whose result is to be drawn.
bool HaveGnuplot();

/// What to do where there is none: the end of a message that begins with the
/// option.
inline constexpr std::string_view kNoGnuplot =
    "there is no gnuplot here, so no picture; install it (apt-get install "
    "gnuplot-nox, dnf install gnuplot, or brew install gnuplot)";

/// The SVG that gnuplot prints when it runs the script. Throws Error.
std::string DrawSvg(const std::string& script);

}  // namespace kvlab
