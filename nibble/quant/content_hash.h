// A hash of a quantized matrix that is equal in every dialect and for every division into panels. It is the sum modulo
// 2^64 over all rows of the XXH3 hashes of the row's codes and of the row's scales, each seeded with its position. FP32
// scales of 128 x 128 tiles count to the first row of the tile. The tensor scale is not included.
#pragma once

#include "tensor/quant_matrix.h"

namespace nibble {

// Returns the hash of rows [first_row, first_row + panel.rows). The sum over the panels of a matrix is its hash.
uint64_t content_hash(const QuantView& panel, int64_t first_row);

}  // namespace nibble
