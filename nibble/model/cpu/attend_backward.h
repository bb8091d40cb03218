// Gradients of attention over whole texts. The weights of attention are computed again, 128 queries at a time.
#pragma once

#include "model/batch.h"
#include "model/cpu/workspace.h"

namespace nibble {

struct AttentionRows {
    const float *q, *k, *v;  // as they entered attend()
    int64_t q_stride, k_stride, v_stride;
    const float* dy;      // [rows, heads * v_dim]
    float *dq, *dk, *dv;  // written; strides of q, k, v
};
// Precondition: batch.whole(). Q, K and V count as attention read them (shape.kv); the rounding is the identity on the
// way back, and what an FP8 scale clips has no gradient.
void attend_backward(const Batch& batch, const AttentionShape& shape, const AttentionRows& rows, Workspace& work);

}  // namespace nibble
