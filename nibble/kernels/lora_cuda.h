// Operations of low-rank adapters (train/lora.h) on a GPU in addition to products: adding their term to an output, and
// the B of several linears as one matrix.
//
// Pointers are device pointers. Functions queue work and return at once; they neither allocate nor wait.
#pragma once

#include "kernels/adapter_blocks.h"
#include "tensor/device.h"

namespace nibble::cuda {

// y [n, cols] = bf16(bf16(y) + bf16(scale * bf16(more))), stored as FP32. Rows of y are `stride` floats apart; rows of
// `more` are adjacent.
Status add_scaled_rows(float* y, int64_t stride, const float* more, float scale, int64_t n, int64_t cols,
                       const Stream& stream);

// Converts narrow to wide and writes all of wide. Both BF16.
Status spread_blocks(const AdapterBlocks& b, const std::byte* narrow, std::byte* wide, const Stream& stream);
// narrow = scale * the corresponding entries of wide. Both FP32.
Status gather_blocks(const AdapterBlocks& b, const float* wide, float scale, float* narrow, const Stream& stream);

}  // namespace nibble::cuda
