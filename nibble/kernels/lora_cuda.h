// What low-rank adapters (train/lora.h) need on a GPU beside products: their term into an output, and the B of several
// linears as one matrix.
//
// Pointers are device pointers. Functions queue work and return at once; they neither allocate nor wait.
#pragma once

#include "kernels/adapter_blocks.h"
#include "tensor/device.h"

namespace nibble::cuda {

// y [n, cols] = bf16(bf16(y) + bf16(scale * bf16(more))), as FP32; rows of y lie `stride` floats apart, those of `more`
// are adjacent.
Status add_scaled_rows(float* y, int64_t stride, const float* more, float scale, int64_t n, int64_t cols,
                       const Stream& stream);

// To wide, all of which is written, from narrow. Both BF16.
Status spread_blocks(const AdapterBlocks& b, const std::byte* narrow, std::byte* wide, const Stream& stream);
// narrow = scale * what lies there in wide. Both FP32.
Status gather_blocks(const AdapterBlocks& b, const float* wide, float scale, float* narrow, const Stream& stream);

}  // namespace nibble::cuda
