// Scales as exporters store them (F32, BF16, F16, F64, E8M0), as FP32 numbers. U8 holds E8M0 exponents: MX formats are
// stored so by programs whose library has no such dtype.
#pragma once

#include "base/dtype.h"

#include <cstddef>
#include <span>

namespace nibble {

// Whether numbers of the dtype can be multipliers of a matrix, a row or a tile.
bool is_scale_dtype(DType dtype);

// The first out.size() numbers at `from`, exact for every dtype but F64, which is rounded. Precondition:
// is_scale_dtype(dtype), or E4M3 (block scales).
void widen_scales(DType dtype, const std::byte* from, std::span<float> out);

}  // namespace nibble
