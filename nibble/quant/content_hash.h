// What a quantized matrix holds, as one number that is equal in every dialect and however the matrix is cut into
// panels: the sum, modulo 2^64, over all rows of XXH3 of the row's codes and of the row's scales, each seeded with its
// place. FP32 scales of 128 x 128 tiles belong to the first row of the tile. The tensor scale is not part of it.
#pragma once

#include "tensor/quant_matrix.h"

namespace nibble {

// Of the rows [first_row, first_row + panel.rows): add the panels of a matrix up.
uint64_t content_hash(const QuantView& panel, int64_t first_row);

}  // namespace nibble
