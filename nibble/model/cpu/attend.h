// Attention of a batch on the CPU: stores K and V where each segment keeps them, then calls the attention kernel.
#pragma once

#include "base/error.h"
#include "model/batch.h"
#include "model/cpu/workspace.h"

#include <vector>

namespace nibble {

// The owner of the keys and values that a call reads.
enum class KvOwner : uint8_t {
    own,       // the block's
    shared,    // the block's, and later blocks will ask for those of whole texts: they stay in Workspace::shared_pages
    borrowed,  // K and V are those that block `index` shared; k and v are null
};

// The keys that the rows of each segment see (AttentionJob::chosen). `bits` null: all.
struct KeyChoice {
    struct OfSegment {
        const uint64_t* bits = nullptr;
        int64_t words = 0;
    };
    std::vector<OfSegment> segments;  // empty: all keys in every segment
    int groups = 1;
};

// Computes y [rows, heads * v_dim] from q [rows, heads * k_dim], k [rows, kv.heads * k_dim] and v [rows, kv.heads *
// v_dim]. Strides are in floats. A segment with a sequence stores K and V in the sequence's pages of block `index`; a
// whole text stores them in scratch pages.
void attend(const Batch& batch, int index, const AttentionShape& shape, const float* q, int64_t q_stride,
            const float* k, int64_t k_stride, const float* v, int64_t v_stride, float* y, Workspace& work,
            KvOwner owner = KvOwner::own, const KeyChoice& choice = {});
// Error: a whole text of the batch whose keys block `index` has not left in `work`.
Status check_borrowed(const Batch& batch, int index, const Workspace& work);

// Returns the queries in the precision in which they are multiplied with K. With shape.kv.q_scale, these are E4M3 of x
// / scale (saturating), times the scale (rounded to BF16 with Compute::bf16), in memory of the arena. Otherwise they
// are the given rows.
struct QueryRows {
    const float* x = nullptr;
    int64_t stride = 0;
};
QueryRows read_queries(const AttentionShape& shape, const QueryRows& q, int64_t rows, Workspace& work);

}  // namespace nibble
