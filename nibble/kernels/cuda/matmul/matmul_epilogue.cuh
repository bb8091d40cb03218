// Shared by all products of exact operands: the rows and expert of a thread block, and the factors of an output.
#pragma once

#include "kernels/cuda/matmul/bf16/operand_launch.h"

#include <cuda_runtime.h>

namespace nibble::cuda {

// Rows [first, first + count) of y and their expert. count 0: no work.
struct TokenTile {
    int expert = 0, first = 0, count = 0;
};

// Returns tile number `tile`, counting tiles of `tile_tokens` rows over experts in ascending order. Called by all lanes
// of a warp.
__device__ inline TokenTile find_tile(const ProductArgs& args, int tile, int tile_tokens) {
    if (args.experts == 0) {
        const int first = tile * tile_tokens;
        return {0, first, min(tile_tokens, args.tokens - first)};
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int before = 0;
    for (int base = 0; base < args.experts; base += 32) {
        const int e = base + lane;
        const int begin = e < args.experts ? args.begin[e] : 0, end = e < args.experts ? args.begin[e + 1] : 0;
        const int mine = (end - begin + tile_tokens - 1) / tile_tokens;
        int through = mine;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xFFFFFFFFu, through, step);
            if (lane >= step) through += other;
        }
        const int all = __shfl_sync(0xFFFFFFFFu, through, 31);
        if (tile < before + all) {
            const bool here = tile < before + through && tile >= before + through - mine;
            const int owner = __ffs(static_cast<int>(__ballot_sync(0xFFFFFFFFu, here))) - 1;
            const int first = begin + (tile - (before + through - mine)) * tile_tokens;
            const int count = min(tile_tokens, end - first);
            return {__shfl_sync(0xFFFFFFFFu, e, owner), __shfl_sync(0xFFFFFFFFu, first, owner),
                    __shfl_sync(0xFFFFFFFFu, count, owner)};
        }
        before += all;
    }
    return {};
}

// Kernels differ in whether a chain starts by adding to +0: adding +0 turns -0 into +0.
__device__ inline float product_output(float sum, float factor, float bias) {
    return __fadd_rn(__fmul_rn(__fadd_rn(sum, 0.0f), factor), bias);
}

struct RowFactors {
    float scale, bias;
    __device__ RowFactors(const ProductArgs& a, int expert, int row) {
        scale = a.tile_scales     ? 1.0f
                : a.row_scales    ? a.row_scales[int64_t{expert} * a.n + row]
                : a.expert_scales ? a.expert_scales[expert]
                                  : a.scale;
        bias = a.bias ? a.bias[int64_t{expert} * a.n + row] : 0.0f;
    }
};
__device__ inline float token_factor(const ProductArgs& a, int source) {
    return a.token_scales ? a.token_scales[source] : a.input_scale;
}

}  // namespace nibble::cuda
