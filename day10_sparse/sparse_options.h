/// \file
/// Options of stage 4 that several programs have.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "day10_sparse/sparse_topk.h"

namespace kvlab {

/// --block-size and --n-probe.
void DeclareBlockOptions(CLI::App& app, SparseOptions& options);

/// --importance, as the user writes it.
void DeclareImportance(CLI::App& app, std::string& importance);

/// What that means: one of raw, per-viewer, off.
ImportanceUse ParseImportance(const std::string& importance);

/// --dense-below.
CLI::Option* DeclareDenseBelow(CLI::App& app, SparseOptions& options);

}  // namespace kvlab
