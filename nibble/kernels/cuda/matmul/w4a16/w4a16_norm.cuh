// Computed by products of one token before their own sums: the norm that gives x, in every thread block, and a router's
// product in additional blocks.
#pragma once

#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/matmul/w4a16/matmul_launch.h"
#include "kernels/cuda/matmul/w4a16/w4a16_decode.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

namespace nibble::cuda {

__device__ inline float2 values_of(uint32_t pair) {
    return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
}

// Stores h + update in the order of the reference sum, and its norm as x. Shared memory: row, norm_row_bytes().
__device__ inline void normed_input(const GemvArgs& args, float* row, uint32_t* x, float2 (&w)[norm_pairs]) {
    const GemvNorm& n = args.norm;
    const int k = static_cast<int>(args.x_bytes / 2), pitch = lane_pitch(k), threads = static_cast<int>(blockDim.x);
    float* shared_scale = row + sum_lanes * pitch;
    float2 v[norm_pairs], u[norm_pairs];
    uint32_t h[norm_pairs];
    bool bad = false;
    // All loads are in flight before the first is used.
#pragma unroll
    for (int j = 0; j < norm_pairs; ++j) {
        const int pair = min(static_cast<int>(threadIdx.x) + j * threads, k / 2 - 1);
        h[j] = reinterpret_cast<const uint32_t*>(n.h)[pair];
        if (n.update) u[j] = reinterpret_cast<const float2*>(n.update)[pair];
    }
#pragma unroll
    for (int j = 0; j < norm_pairs; ++j) {
        const int pair = static_cast<int>(threadIdx.x) + j * threads;
        if (pair >= k / 2) continue;
        v[j] = values_of(h[j]);
        if (n.update) {
            const float2 update = values_of(pair_of(u[j].x, u[j].y));
            h[j] = pair_of(v[j].x + update.x, v[j].y + update.y);
            v[j] = values_of(h[j]);
        }
        float* to = lane_place(row, pitch, 2 * pair);
        to[0] = v[j].x, to[pitch] = v[j].y;
        if (blockIdx.x > 0) continue;
        if (n.h_out) reinterpret_cast<uint32_t*>(n.h_out)[pair] = h[j];
        bad = bad || !is_finite(v[j].x) || !is_finite(v[j].y);
    }
    if (bad && n.nonfinite) atomicMin(n.nonfinite, 0);
    __syncthreads();
    if (threadIdx.x < 32) {
        const float scale = norm_scale(row, k, n.eps);
        if (threadIdx.x == 0) *shared_scale = scale;
    }
    __syncthreads();
    const float r = *shared_scale;
#pragma unroll
    for (int j = 0; j < norm_pairs; ++j)
        if (const int pair = static_cast<int>(threadIdx.x) + j * threads; pair < k / 2) {
            x[pair] = pair_of((v[j].x * r) * w[j].x, (v[j].y * r) * w[j].y);
            if (blockIdx.x == 0 && n.x_out) reinterpret_cast<uint32_t*>(n.x_out)[pair] = x[pair];
        }
    // Columns of padding.
    for (int pair = k / 2 + static_cast<int>(threadIdx.x); pair < args.row_records * w4a16::record_cols / 2;
         pair += threads)
        x[pair] = 0;
}

__device__ inline void load_norm_weight(const GemvArgs& args, float2 (&w)[norm_pairs]) {
#pragma unroll
    for (int j = 0; j < norm_pairs; ++j)
        if (const uint32_t pair = threadIdx.x + j * blockDim.x; pair < args.x_bytes / 4)
            w[j] = reinterpret_cast<const float2*>(args.norm.weight)[pair];
}

// The thread blocks of GemvArgs::side: the order of matmul_bf16_splitk_kernel, one warp per chunk. Shared memory: x,
// 16 rows of W, norm_row_bytes().
__device__ inline void side_rows(const GemvArgs& args, uint8_t* shared) {
    const GemvSide& side = args.side;
    const int row_tile = static_cast<int>(blockIdx.x) - args.blocks, thread = static_cast<int>(threadIdx.x);
    const int warp = thread / 32, lane = thread % 32, threads = static_cast<int>(blockDim.x);
    const uint32_t weights_at = shared_address(shared) + args.x_pitch;
    const uint8_t* from =
        side.tiles + int64_t{row_tile / 4} * side.k_tiles * operand_tile_bytes + row_tile % 4 * operand_row_tile_bytes;
    for (int i = thread; i < side.k_tiles * (operand_row_tile_bytes / 16); i += threads)
        copy16_or_zero(weights_at + 16 * i,
                       from + int64_t{i / (operand_row_tile_bytes / 16)} * operand_tile_bytes +
                           16 * (i % (operand_row_tile_bytes / 16)),
                       true);
    float2 norm_weight[norm_pairs];
    load_norm_weight(args, norm_weight);
    if (args.overlap) {
        overlap_next();
        wait_for_previous();
    }
    auto* row = reinterpret_cast<float*>(shared + args.x_pitch + side.k_tiles * operand_row_tile_bytes);
    normed_input(args, row, reinterpret_cast<uint32_t*>(shared), norm_weight);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    if (warp < matmul_chunks) {
        const int chunk_tiles = (side.k_tiles + matmul_chunks - 1) / matmul_chunks;
        const int first = min(warp * chunk_tiles, side.k_tiles), last = min(first + chunk_tiles, side.k_tiles);
        float acc[4] = {};
        for (int t = first; t < last; ++t) {
            const uint32_t piece = weights_at + t * operand_row_tile_bytes + lane % 16 * 128;
            const uint8_t* x = shared + 128 * t + 4 * (lane % 4);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                uint32_t a[4];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                             : "r"(piece + ((2 * j + lane / 16) ^ lane % 8) * 16)
                             : "memory");
                multiply_add(acc, a, *reinterpret_cast<const uint32_t*>(x + 32 * j),
                             *reinterpret_cast<const uint32_t*>(x + 32 * j + 16));
            }
        }
        if (lane % 4 == 0) row[16 * warp + lane / 4] = acc[0], row[16 * warp + lane / 4 + 8] = acc[2];
    }
    __syncthreads();
    const int out = row_tile * 16 + thread;
    if (thread >= 16 || out >= side.n) return;
    float sums[matmul_chunks];
#pragma unroll
    for (int c = 0; c < matmul_chunks; ++c) sums[c] = row[16 * c + thread];
    side.y[out] = product_output(tree_sum(sums), side.row_scales ? side.row_scales[out] : side.scale,
                                 side.bias ? side.bias[out] : 0.0f);
}

}  // namespace nibble::cuda
