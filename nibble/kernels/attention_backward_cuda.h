// Backward pass of attention on a GPU: dS = P * (dP - sum(dO * O)).
//
// Multi-head latent attention (model/cpu/latent_attention.h) becomes rows of heads for attention_backward(), whose
// queries, keys and values have one width: latent_rows() before it; latent_backward() and latent_join() turn its
// results into gradients of the products. A sum over heads runs in ascending order.
//
// Gradients are BF16. No result depends on timing or on how many multiprocessors there are; nothing is added
// atomically.
//
// Pointers are device pointers, 16-byte aligned; rows are adjacent where no stride is given; widths are multiples of 8.
// Functions queue work and return at once; they neither allocate nor wait.
#pragma once

#include "kernels/attention_backward_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

bool has_attention_backward(int dim);
int64_t attention_backward_workspace(int64_t tokens, int q_heads);
Status attention_backward(const AttentionBackward& a, const Stream& stream);

// k and v, wide_o and wide_d_o.
Status latent_rows(const LatentShape& shape, const LatentRows& r, const Stream& stream);
Status latent_backward(const LatentShape& shape, const LatentBackward& b, const Stream& stream);
Status latent_join(const LatentJoin& j, const Stream& stream);

}  // namespace nibble::cuda
