// From K and V of a batch's rows to attention: storing them where the segment keeps them, then the kernel.
#pragma once

#include "model/batch.h"
#include "model/cpu/workspace.h"

namespace nibble {

// q [rows, heads * k_dim], k [rows, kv.heads * k_dim], v [rows, kv.heads * v_dim], y [rows, heads * v_dim]; strides in
// floats. A segment with a sequence stores into its pages of block `index`; a whole text into scratch pages.
void attend(const Batch& batch, int index, const AttentionShape& shape, const float* q, int64_t q_stride,
            const float* k, int64_t k_stride, const float* v, int64_t v_stride, float* y, Workspace& work);

}  // namespace nibble
