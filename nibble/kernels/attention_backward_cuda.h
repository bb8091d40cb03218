// Backward pass of attention on a GPU: dS = P * (dP - sum(dO * O)).
//
// Multi-head latent attention (model/cpu/latent_attention.h) uses attention_backward() too, where queries, keys and
// values have equal width. latent_rows() prepares its rows of heads; latent_backward() and latent_join() convert the
// results to gradients of the products. A sum over heads runs in ascending order.
//
// Gradients are BF16. Results do not depend on timing or on the number of multiprocessors; there are no atomics.
//
// Pointers are device pointers, 16-byte aligned. Rows without a stride are adjacent. Widths are multiples of 8.
// Functions queue work and return at once; they neither allocate nor wait.
#pragma once

#include "kernels/attention_backward_args.h"
#include "tensor/device.h"

namespace nibble::cuda {

bool has_attention_backward(int dim);
int64_t attention_backward_workspace(int64_t tokens, int q_heads);
Status attention_backward(const AttentionBackward& a, const Stream& stream);

// Writes k, v, wide_o and wide_d_o.
Status latent_rows(const LatentShape& shape, const LatentRows& r, const Stream& stream);
Status latent_backward(const LatentShape& shape, const LatentBackward& b, const Stream& stream);
Status latent_join(const LatentJoin& j, const Stream& stream);

}  // namespace nibble::cuda
