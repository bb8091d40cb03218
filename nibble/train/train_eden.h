// MS-EDEN (Quartet II): quantizes both operands of a gradient's product to NVFP4, unbiased over random rotations.
// Operands are matrices [outer, reduction]. Definition: docs/topics/training.md, "MS-EDEN".
#pragma once

#include "train/train_cast.h"

namespace nibble {

// Quantizes x [rows, cols]. `signs` selects the random signs of the rotation, which must be the same for both operands
// of a product: reduction index n uses draw first_sign + n of (signs.id, signs.draw). `random` rounds the block scales.
// The reduction is padded to a multiple of 128.
CastOperand eden_rows(const float* x, int64_t rows, int64_t cols, int64_t stride, const CastRandom& random,
                      const CastRandom& signs, uint64_t first_sign, ThreadPool& pool);

}  // namespace nibble
