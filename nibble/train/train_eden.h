// MS-EDEN (Quartet II): NVFP4 of both operands of a gradient's product, unbiased over random rotations, for any matrix
// [outer, reduction]. Definition: docs/training.md, "MS-EDEN".
#pragma once

#include "train/train_cast.h"

namespace nibble {

// x [rows, cols]; `signs` names the rotation's random signs (the same for both operands of a product): reduction index
// n has draw first_sign + n of (signs.id, signs.draw). `random` rounds the block scales. The operand's reduction is
// padded to whole groups of 128.
CastOperand eden_rows(const float* x, int64_t rows, int64_t cols, int64_t stride, const CastRandom& random,
                      const CastRandom& signs, uint64_t first_sign, ThreadPool& pool);

}  // namespace nibble
