// The way back from a packed weight, for backward passes: a layer keeps one copy of its weight, and its transpose is
// made when gradients are wanted.
#pragma once

#include "kernels/matmul.h"

namespace nibble {

// W^T [K, N] in FP32 of a packed W [N, K]; quantized weights decoded: (code * block scale) * scale of the row.
PackedMatrix transposed(const PackedMatrix& weight, ThreadPool& pool);
// Outputs [32 panel, 32 panel + 32) decoded the same way, [cols][32]; zeros for outputs that are not there.
void decode_panel(const PackedMatrix& weight, int64_t panel, float* values);
// The transpose of x [rows, cols], `stride` floats from row to row, as a weight [cols, rows].
PackedMatrix pack_transposed(const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool);
// x itself, as a weight [rows, cols].
PackedMatrix pack_rows(const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool);

}  // namespace nibble
