// Arguments of the kernels of attention's backward pass, and the terms that dQ's kernels compute for those of dK and
// dV.
#pragma once

#include "kernels/attention_backward_args.h"

#include <climits>

namespace nibble::cuda {

struct AttentionBackArgs {
    AttentionBackward a;
    float factor;    // scale * log2(e)
    int64_t padded;  // tokens, rounded up to whole tiles of 64
    // Per query; padding after the last query sees no key.
    float* sums;    // [q_heads, padded]: a.log_sums; padding: infinity
    float* deltas;  // [q_heads, padded]: sum(dO * O); padding: 0
    int* lowest;    // [padded]: the first visible key; padding: INT_MAX
};

// Returns the first key that a query sees. It never decreases from one query to the next.
__device__ inline int lowest_key(const AttentionBackward& a, int query) {
    const int first = a.first[query];
    const int window = a.window > 0 && a.window <= query ? query - static_cast<int>(a.window) + 1 : 0;
    return first > window ? first : window;
}

// A lane's two rows of a warp's 16 queries from `query0` on, in accumulator layout, of one head.
template <int Dim>
struct QueryRows {
    int query[2], lowest[2];
    float sum[2], delta[2];

    // Called by all lanes; writes the terms of the rows.
    __device__ QueryRows(const AttentionBackArgs& args, int query0, int head) {
        const AttentionBackward& a = args.a;
        const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            query[half] = query0 + g + 8 * half;
            const bool present = query[half] < a.tokens;
            const int64_t row = int64_t{query[half]} * a.q_heads + head;
            lowest[half] = present ? lowest_key(a, query[half]) : INT_MAX;
            sum[half] = present ? a.log_sums[row] : INFINITY;
            float part = 0.0f;
            if (present) {
#pragma unroll
                for (int i = 8 * c; i < Dim; i += 32) {
                    const uint4 x = *reinterpret_cast<const uint4*>(a.o + 2 * (row * Dim + i)),
                                y = *reinterpret_cast<const uint4*>(a.d_o + 2 * (row * Dim + i));
                    const uint32_t left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        part = fmaf(__uint_as_float(left[j] << 16), __uint_as_float(right[j] << 16), part);
                        part =
                            fmaf(__uint_as_float(left[j] & 0xFFFF0000u), __uint_as_float(right[j] & 0xFFFF0000u), part);
                    }
                }
            }
            part += __shfl_xor_sync(0xFFFFFFFFu, part, 1);
            part += __shfl_xor_sync(0xFFFFFFFFu, part, 2);
            delta[half] = part;
            if (c == 0 && query[half] < args.padded) {
                args.sums[head * args.padded + query[half]] = sum[half];
                args.deltas[head * args.padded + query[half]] = part;
                if (head == 0) args.lowest[query[half]] = lowest[half];
            }
        }
    }
    __device__ bool sees(int key, int half) const { return key <= query[half] && key >= lowest[half]; }
};

}  // namespace nibble::cuda
