// Shared by the kernels for experts: x in shared memory, the expert of a tile of tokens, the output.
#pragma once

#include "kernels/cuda/matmul/w4a16/w4a16_decode.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

namespace nibble::cuda::experts {

// Adjacent tokens start 16 bytes apart in the banks: a lane's 32 bytes of four k-steps are read without conflicts.
constexpr int x_row_bytes = w4a16::record_cols * 2 + 16;

// begin[e] of every expert, and the number of token tiles of all earlier experts; in shared memory.
struct Tables {
    const int* begin;
    const int* before;
    int experts;

    __device__ int expert_of(int tile) const {
        int low = 0, high = experts - 1;  // the last expert with before[e] <= tile has tiles
        while (low < high) {
            const int middle = (low + high + 1) / 2;
            if (before[middle] <= tile)
                low = middle;
            else
                high = middle - 1;
        }
        return low;
    }
};

// Scales of the rows g and g + 8 of a row tile, and the position of its outputs.
struct Output {
    const ExpertsArgs& args;
    int row;     // g's
    int64_t at;  // row index over all experts
    float scale[2] = {};

    __device__ Output(const ExpertsArgs& a, int expert, int first_row, int g)
        : args(a), row(first_row + g), at(int64_t{expert} * a.n + row) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
            if (row + 8 * h < a.n) scale[h] = __ldg(a.row_scales + at + 8 * h);
    }
    __device__ float value(float sum, int h) const {
        const float y = fmaf(sum * scale[h], w4a16::unscale, 0.0f);
        return args.bias && row + 8 * h < args.n ? y + __ldg(args.bias + at + 8 * h) : y;
    }
    __device__ void store(int slot, float upper, float lower) const {
        const float y[2] = {value(upper, 0), value(lower, 1)};
        if (args.out && args.gated) {
            const int to = row / 16 * 8 + row % 8;
            if (row < args.n)
                args.out[slot * args.y_stride + to] =
                    bf16_from_float(act(args.activation, rounded(y[0])) * rounded(y[1]));
            return;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (row + 8 * h >= args.n) continue;
            const int64_t to = slot * args.y_stride + row + 8 * h;
            if (args.out)
                args.out[to] = bf16_from_float(act(args.activation, rounded(y[h])));
            else
                args.y[to] = y[h];
        }
    }
};

// Writes begin[e] and then before[e] to `begin`: 2 (experts + 1) words. Called by all threads of the block.
template <class Args>
__device__ Tables make_tables(const Args& args, int* begin, int tile_tokens) {
    int* before = begin + args.experts + 1;
    for (int e = static_cast<int>(threadIdx.x); e <= args.experts; e += static_cast<int>(blockDim.x)) {
        const int first = args.begin[e], next = e < args.experts ? args.begin[e + 1] : first;
        begin[e] = first;
        before[e] = (next - first + tile_tokens - 1) / tile_tokens;  // its own number, for now
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        const int lane = static_cast<int>(threadIdx.x);
        int sum = 0;
        for (int base = 0; base <= args.experts; base += 32) {
            const int e = base + lane, own = e <= args.experts ? before[e] : 0;
            int through = own;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int other = __shfl_up_sync(0xFFFFFFFFu, through, step);
                if (lane >= step) through += other;
            }
            if (e <= args.experts) before[e] = sum + through - own;
            sum += __shfl_sync(0xFFFFFFFFu, through, 31);
        }
    }
    __syncthreads();
    return {begin, before, args.experts};
}

// Multiplies one record by 256 columns of x, from registers and from `x`, the lane's columns of the stage's first
// token. `token(t)` is the lane's token among the eight of tile t.
template <int Tiles, class Token>
__device__ __forceinline__ void multiply_record(float (&acc)[Tiles][4], const uint4 (&codes)[w4a16::record_blocks],
                                                uint2 scales, const ScaleBits& bits, const uint8_t* x, Token token) {
#pragma unroll
    for (int b = 0; b < w4a16::record_blocks; ++b) {
        const ScalePairs pairs(scales, b, bits);
        uint32_t a[4][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) decode_step(a[j], codes[b], pairs, j);
#pragma unroll
        for (int t = 0; t < Tiles; ++t) {
            const uint4* columns = reinterpret_cast<const uint4*>(x + token(t) * x_row_bytes + 128 * b);
            const uint4 low = columns[0], high = columns[1];
            multiply_add(acc[t], a[0], low.x, low.y);
            multiply_add(acc[t], a[1], low.z, low.w);
            multiply_add(acc[t], a[2], high.x, high.y);
            multiply_add(acc[t], a[3], high.z, high.w);
        }
    }
}

// The same if all tokens are read; `x` is the lane's position in the first eight.
template <int Tiles>
__device__ __forceinline__ void multiply_record(float (&acc)[Tiles][4], const uint4 (&codes)[w4a16::record_blocks],
                                                uint2 scales, const ScaleBits& bits, const uint8_t* x) {
    multiply_record<Tiles>(acc, codes, scales, bits, x, [](int t) { return 8 * t; });
}

// Sums `Chunks` chunks in order, pairwise; the last one leaves the sum in acc.
template <int Tiles, int Chunks>
struct ChunkSums {
    static constexpr int levels = Chunks >= 8 ? 3 : Chunks >= 4 ? 2 : 1;
    float parked[levels][Tiles][4];

    // Called after chunk `local` of the warp's own.
    __device__ __forceinline__ void fold(float (&acc)[Tiles][4], int local) {
        int level = 0;
#pragma unroll
        for (int l = 0; l < levels; ++l) {
            if (level < l) break;
            if (local >> l & 1) {
                add(acc, parked[l]);
                level = l + 1;
            } else {
                keep(acc, parked[l]);
            }
        }
    }

private:
    static __device__ __forceinline__ void add(float (&acc)[Tiles][4], const float (&left)[Tiles][4]) {
#pragma unroll
        for (int t = 0; t < Tiles; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[t][e] = left[t][e] + acc[t][e];
    }
    static __device__ __forceinline__ void keep(const float (&acc)[Tiles][4], float (&to)[Tiles][4]) {
#pragma unroll
        for (int t = 0; t < Tiles; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) to[t][e] = acc[t][e];
    }
};

}  // namespace nibble::cuda::experts
