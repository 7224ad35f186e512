/// \file
/// The tables of single instruction sets, for primitives.cpp alone.
#pragma once

#include "common/simd/primitives.h"

namespace kvlab {

const Primitives& ScalarPrimitives();
// x86-64 only
const Primitives& Avx2Primitives();
const Primitives& Avx512Primitives();
const Primitives& Avx512VnniPrimitives();
// aarch64 only
const Primitives& NeonPrimitives();
const Primitives& NeonDotprodPrimitives();

}  // namespace kvlab
