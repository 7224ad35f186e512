/// \file
/// Pictures by gnuplot: one look for all of them, and SVG files that appear
/// whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvlab {

/// What to do where there is no gnuplot: the end of a message.
inline constexpr std::string_view kNoGnuplot =
    "there is no gnuplot here, so no picture; install it (apt-get install "
    "gnuplot-nox, dnf install gnuplot, or brew install gnuplot)";

/// True if there is a gnuplot to run: for programs whose work is long.
bool HaveGnuplot();

/// What every script begins with: an SVG of this size in pixels, without a
/// background, in the course's font and greys.
std::string SvgPlotHead(std::uint64_t width, std::uint64_t height);

/// `text` as a string of gnuplot, in which only the quote is special.
std::string PlotQuoted(const std::string& text);

/// Runs gnuplot on a script that prints an SVG and writes what it prints to
/// `path`, whole or not at all. Returns false if there is no gnuplot. Throws
/// Error.
bool DrawSvg(const std::string& script, const std::filesystem::path& path);

}  // namespace kvlab
