// Unpacks packed weights for the backward pass: a layer keeps one copy of its weight, and its transpose is made when
// gradients are computed.
#pragma once

#include "kernels/matmul.h"

namespace nibble {

// Returns W^T [K, N] in FP32 of a packed W [N, K]. Quantized weights are decoded: (code * block scale) * scale of the
// row.
PackedMatrix transposed(const PackedMatrix& weight, ThreadPool& pool);
// Decodes outputs [32 panel, 32 panel + 32) the same way to [cols][32]; zeros for outputs beyond the last.
void decode_panel(const PackedMatrix& weight, int64_t panel, float* values);
// Packs the transpose of x [rows, cols], `stride` floats per row, as a weight [cols, rows].
PackedMatrix pack_transposed(const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool);
// Packs x as a weight [rows, cols].
PackedMatrix pack_rows(const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool);

}  // namespace nibble
