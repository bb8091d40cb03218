// What both kernels of the way back through attention are given.
#pragma once

#include "kernels/train_args.h"

namespace nibble::cuda {

struct AttentionBackArgs {
    AttentionBackward a;
    float* deltas;  // [q_heads, tokens]: sum(dO * O)
    float factor;   // scale * log2(e)
};

// The first key that a query sees. It never falls from one query to the next.
__device__ inline int lowest_key(const AttentionBackward& a, int query) {
    const int first = a.first[query];
    const int window = a.window > 0 && a.window <= query ? query - static_cast<int>(a.window) + 1 : 0;
    return first > window ? first : window;
}

}  // namespace nibble::cuda
