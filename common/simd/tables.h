/// \file
/// The tables of single instruction sets, for primitives.cpp alone.
#pragma once

#include "common/simd/primitives.h"

namespace kvlab {

const Primitives& ScalarPrimitives();
const Primitives& Avx2Primitives();  // x86-64 only

}  // namespace kvlab
