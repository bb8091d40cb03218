// Gradients of attention over whole texts. Attention weights are recomputed, 128 queries at a time.
#pragma once

#include "model/batch.h"
#include "model/cpu/workspace.h"

namespace nibble {

struct AttentionRows {
    const float *q, *k, *v;  // the inputs of attend()
    int64_t q_stride, k_stride, v_stride;
    const float* dy;      // [rows, heads * v_dim]
    float *dq, *dk, *dv;  // outputs, overwritten; with the strides of q, k and v
};
// Precondition: batch.whole(). Q, K and V are rounded as in the forward pass (shape.kv). The backward pass treats
// rounding as the identity; values that an FP8 scale clipped have gradient 0.
void attend_backward(const Batch& batch, const AttentionShape& shape, const AttentionRows& rows, Workspace& work);

}  // namespace nibble
