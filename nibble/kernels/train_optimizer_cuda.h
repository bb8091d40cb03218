// Optimizer updates on a GPU in addition to plain AdamW (kernels/train_cuda.h): AdamW with BF16 states, and Muon. The
// formulas, their order and the random bits are those of train/optimizer.h.
//
// Pointers are device pointers, 16-byte aligned. Functions queue work and return at once; they neither allocate nor
// wait. Nothing changes if *clip is NaN. kernels/cuda_absent/train_optimizer.cpp implements this header in a build
// without CUDA.
#pragma once

#include "kernels/train_optimizer_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

Status adamw_update(const NarrowAdamW& a, const Stream& stream);
int64_t muon_workspace(int64_t rows, int64_t cols);
Status muon_update(const Muon& u, const Stream& stream);

}  // namespace nibble::cuda
