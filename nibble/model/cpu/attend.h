// From K and V of a batch's rows to attention: storing them where the segment keeps them, then the kernel.
#pragma once

#include "model/batch.h"
#include "model/cpu/workspace.h"

namespace nibble {

// q [rows, heads * k_dim], k [rows, kv.heads * k_dim], v [rows, kv.heads * v_dim], y [rows, heads * v_dim]; strides in
// floats. A segment with a sequence stores into its pages of block `index`; a whole text into scratch pages.
void attend(const Batch& batch, int index, const AttentionShape& shape, const float* q, int64_t q_stride,
            const float* k, int64_t k_stride, const float* v, int64_t v_stride, float* y, Workspace& work);

// Queries as they meet K. With shape.kv.q_scale: E4M3 of x / scale, saturating, times the scale (rounded to BF16 with
// Compute::bf16), in memory of the arena; otherwise the rows themselves.
struct QueryRows {
    const float* x = nullptr;
    int64_t stride = 0;
};
QueryRows read_queries(const AttentionShape& shape, const QueryRows& q, int64_t rows, Workspace& work);

}  // namespace nibble
