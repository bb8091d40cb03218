// What one warp of the attention kernel computes: a run of 64 positions.
#pragma once

#include "kernels/cuda/attention_order.cuh"

namespace nibble::cuda {

inline constexpr int run_tiles = run_tokens / kv_tile_tokens;

__device__ inline uint32_t transposed(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// A run of 64 positions for `Tiles` groups of eight columns: a lane has columns 2 c and 2 c + 1 of each.
template <class Kv, KvDims Dims, int Tiles>
struct AttentionRun {
    float t[run_tiles][Tiles][4];  // scores, then exponentials
    float top[Tiles][2], sum[Tiles][2], o[Tiles][Dims.v / 16][4];

    __device__ void clear() {
#pragma unroll
        for (auto& each : o)
#pragma unroll
            for (auto& four : each)
#pragma unroll
                for (float& v : four) v = 0.0f;
    }
    // Tiles i and i + 1.
    __device__ void score(int i, const uint8_t* const (&tile)[2], const uint32_t (&q)[Tiles][Dims.k / 8],
                          float scale_log2, int lane) {
        float s[2][Tiles][4] = {};
        Kv::template scores<Dims.k, Tiles>(s, tile, q, lane);
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int n = 0; n < Tiles; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) t[i + h][n][e] = s[h][n][e] * scale_log2;
    }
    // position[column]: of the query, less that of the run; window: 0 for all.
    __device__ void hide(const int (&position)[Tiles][2], int window, int lane) {
        const int g = lane / 4, token = g / 2 * 4 + g % 2;
#pragma unroll
        for (int i = 0; i < run_tiles; ++i)
#pragma unroll
            for (int n = 0; n < Tiles; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int behind = position[n][e % 2] - (i * kv_tile_tokens + token + e / 2 * 2);
                    if (behind < 0 || (window && behind >= window)) t[i][n][e] = -INFINITY;
                }
    }
    __device__ void exponentials() {
#pragma unroll
        for (int n = 0; n < Tiles; ++n)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float most = -INFINITY;
#pragma unroll
                for (int i = 0; i < run_tiles; ++i) most = fmaxf(most, fmaxf(t[i][n][h], t[i][n][h + 2]));
#pragma unroll
                for (int step = 4; step < 32; step *= 2) most = fmaxf(most, __shfl_xor_sync(all_lanes, most, step));
                top[n][h] = most;
                const float base = most == -INFINITY ? 0.0f : most;
                float all = 0.0f;
#pragma unroll
                for (int i = 0; i < run_tiles; ++i) {
                    t[i][n][h] = exp2_of(t[i][n][h] - base);
                    t[i][n][h + 2] = exp2_of(t[i][n][h + 2] - base);
                    all += t[i][n][h] + t[i][n][h + 2];
                }
#pragma unroll
                for (int step = 4; step < 32; step *= 2) all += __shfl_xor_sync(all_lanes, all, step);
                sum[n][h] = all;
            }
    }
    // `exist`: tokens of the tile that somebody sees or saw; others may hold anything and become zeros.
    __device__ void value(int i, uint8_t* tile, int exist, int lane) {
        if (exist < kv_tile_tokens) {
#pragma unroll 1
            for (int at = 16 * lane; at < v_tile_bytes(Kv::type, Dims); at += 512) {
                uint4* w = reinterpret_cast<uint4*>(tile + at);
                *w = Kv::masked(*w, exist - lane % 4 * 4);
            }
            __syncwarp();
        }
        uint32_t p[Tiles][2];
#pragma unroll
        for (int n = 0; n < Tiles; ++n) {
            p[n][0] = transposed(Kv::pack(t[i][n][0], t[i][n][1]));
            p[n][1] = transposed(Kv::pack(t[i][n][2], t[i][n][3]));
        }
        Kv::template values<Dims.v, Tiles>(o, tile, p, lane);
        // The copy engine writes there next.
        if (exist < kv_tile_tokens) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
};

}  // namespace nibble::cuda
