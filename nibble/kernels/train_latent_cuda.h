// The backward pass of multi-head latent attention on a GPU (model/cpu/latent_attention.h), in addition to
// kernels/train_cuda.h. It prepares rows of heads for attention_backward(), where queries, keys and values have equal
// width, and converts their gradients back.
//
// Pointers are device pointers; functions queue work and return at once. A sum over heads runs in ascending order.
// kernels/cuda_absent/train_latent.cpp implements this header in a build without CUDA.
#pragma once

#include "kernels/train_latent_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

// Writes k, v, wide_o and wide_d_o.
Status latent_rows(const LatentShape& shape, const LatentRows& r, const Stream& stream);
Status latent_backward(const LatentShape& shape, const LatentBackward& b, const Stream& stream);
Status latent_join(const LatentJoin& j, const Stream& stream);

}  // namespace nibble::cuda
