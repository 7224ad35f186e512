/// \file
/// A picture of how far two dumps are apart in each layer and head.
#pragma once

#include <string>

#include "common/lab/dump_comparison.h"

namespace kvlab {

/// The script that makes gnuplot print the picture, an SVG (see DrawSvg): a
/// square for each layer and head, coloured by relative L2 error. NaN and
/// infinity have a colour of their own. The title's two lines: `heading`, and
/// `files`, which names what was compared.
std::string ErrorPlotScript(const HeadErrors& errors,
                            const std::string& heading,
                            const std::string& files);

}  // namespace kvlab
