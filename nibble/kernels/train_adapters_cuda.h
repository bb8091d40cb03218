// What low-rank adapters (train/lora.h) need on a GPU beside products: their term into an output, and parts of matrices
// that lie apart.
//
// Pointers are device pointers. Functions queue work and return at once; they neither allocate nor wait.
// kernels/cuda_absent/train_adapters.cpp implements this header in a build without CUDA.
#pragma once

#include "tensor/device.h"

namespace nibble::cuda {

// y [n, cols] = bf16(bf16(y) + bf16(scale * bf16(more))), as FP32; rows of y lie `stride` floats apart, those of `more`
// are adjacent.
Status add_scaled_rows(float* y, int64_t stride, const float* more, float scale, int64_t n, int64_t cols,
                       const Stream& stream);
// `rows` pieces of `bytes`, which begin to_pitch and from_pitch bytes apart.
Status copy_pieces(std::byte* to, int64_t to_pitch, const std::byte* from, int64_t from_pitch, int64_t bytes,
                   int64_t rows, const Stream& stream);

}  // namespace nibble::cuda
