// Converts stored scales (F32, BF16, F16, F64, E8M0) to FP32. U8 holds E8M0 exponents: programs whose library lacks
// that dtype store MX scales this way.
#pragma once

#include "base/dtype.h"

#include <cstddef>
#include <span>

namespace nibble {

// Returns true if the dtype can store factors of a matrix, a row or a tile.
bool is_scale_dtype(DType dtype);

// Writes the first out.size() numbers at `from`; exact except for F64, which is rounded. Precondition:
// is_scale_dtype(dtype), or E4M3 (block scales).
void widen_scales(DType dtype, const std::byte* from, std::span<float> out);

}  // namespace nibble
