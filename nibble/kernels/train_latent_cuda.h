// The way back through multi-head latent attention on a GPU (model/cpu/latent_attention.h), beside
// kernels/train_cuda.h: rows of heads for attention_backward(), whose queries, keys and values have one width, and what
// becomes of their gradients.
//
// Pointers are device pointers; functions queue work and return at once. A sum over heads runs in ascending order.
#pragma once

#include "kernels/train_latent_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

// k and v, wide_o and wide_d_o.
Status latent_rows(const LatentShape& shape, const LatentRows& r, const Stream& stream);
Status latent_backward(const LatentShape& shape, const LatentBackward& b, const Stream& stream);
Status latent_join(const LatentJoin& j, const Stream& stream);

}  // namespace nibble::cuda
