/// \file
/// A picture of how far two dumps are apart in each layer and head.
#pragma once

#include <filesystem>
#include <string>

#include "common/lab/dump_comparison.h"

namespace kvlab {

/// The script that makes gnuplot print the picture, an SVG, on its standard
/// output: a square for each layer and head, coloured by relative L2 error.
/// NaN and infinity have a colour of their own. `files`: one line that names A
/// and B.
std::string ErrorPlotScript(const HeadErrors& errors, const std::string& files);

/// Runs gnuplot on it and writes what it prints to `path`, whole or not at all.
/// Returns false if there is no gnuplot. Throws Error.
bool DrawErrorPlot(const HeadErrors& errors, const std::string& files,
                   const std::filesystem::path& path);

}  // namespace kvlab
