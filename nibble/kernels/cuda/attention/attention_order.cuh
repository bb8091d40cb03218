// The order of sums shared by all attention kernels (kernels/attention_cuda.h), and the kinds of cache.
#pragma once

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/primitives/ptx.cuh"
#include "kernels/soft_cap.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace nibble::cuda {

inline constexpr unsigned all_lanes = 0xFFFFFFFFu;

__device__ inline float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Returns the reference of a run's exponentials, given that of the group's previous runs (-inf: none). It stays while
// no score exceeds it by more than `most_above`, so sums are rarely rescaled.
inline constexpr float most_above = 8.0f;
__device__ inline float reference_of(float before, float largest_score, float scale) {
    const float run_top = __fmul_rn(largest_score, scale);  // must not fuse with an operation of the caller
    return run_top > before + most_above ? run_top : before;
}
// Returns the factor for sums under the reference `before`.
__device__ inline float rescaling(float before, float now) { return before == now ? 1.0f : exp2_of(before - now); }

// The factors of two partial results under their common reference, which becomes `top`.
struct Weights {
    float own, other;
    __device__ Weights(float& top, float other_top) {
        const float now = fmaxf(top, other_top);
        own = other_top == -INFINITY ? 1.0f : exp2_of(top - now);
        other = other_top == -INFINITY ? 0.0f : exp2_of(other_top - now);
        top = now;
    }
};

// Adds the score of a sink (times log2(e)) to a row's total. Returns the factor of its sum of values.
__device__ inline float add_sink(float sink, float& top, float& sum) {
    const Weights w(top, sink);
    sum = fmaf(w.own, sum, w.other);
    return w.own;
}

// Returns the number of keys that the query at `position` sees, its own included.
__device__ inline int keys_seen(const AttentionArgs& args, int position) {
    const int all = args.window ? args.window : INT32_MAX / 2;
    return args.chunk ? min(all, position % args.chunk + 1) : all;
}

// Returns tanh(z), to about 2^-21 of the result.
__device__ inline float tanh_of(float z) {
    constexpr float t0 = tanh_terms[0], t1 = tanh_terms[1], t2 = tanh_terms[2], t3 = tanh_terms[3], t4 = tanh_terms[4];
    constexpr float two_log2e = 2.88539008178f;
    const float a = fabsf(z), z2 = z * z, p = fmaf(fmaf(fmaf(fmaf(t0, z2, t1), z2, t2), z2, t3), z2, t4);
    const float near = fmaf(p * z2, z, z), far = copysignf(1.0f - __fdividef(2.0f, exp2_of(a * two_log2e) + 1.0f), z);
    return a < 0.625f ? near : far;
}

// The factors of scores: a score s becomes s * log2, or with a cap tanh(s * cap) * log2.
struct ScoreScales {
    float log2, cap;
    __device__ ScoreScales(const AttentionArgs& args, int head) : log2(args.scale_log2), cap(args.cap_scale) {
        if (!args.k_scales) return;
        if (cap > 0)
            cap *= args.k_scales[head];
        else
            log2 *= args.k_scales[head];
    }
};

// Returns the factor of a sum of values, given its sum of exponentials. output() adds +0, which turns -0 into +0, so
// invisible tiles may be skipped or added.
__device__ inline float output_scale(float sum, float v_scale) { return sum == 0.0f ? 0.0f : v_scale / sum; }
__device__ inline float output_of(float value, float scale) { return fmaf(value, scale, 0.0f); }

__device__ inline uint4 shared_load(const uint8_t* at) { return *reinterpret_cast<const uint4*>(at); }

// Mask of the bytes of tokens 4 c + i, i < count, in a word pair or a word.
__device__ inline uint32_t bytes_below(int count, int bytes) {
    const int bits = 8 * bytes * count;
    return bits >= 32 ? 0xFFFFFFFFu : bits <= 0 ? 0u : (1u << bits) - 1u;
}

// The two kinds of cache: a lane's layout of q, the products of a tile with q and with the probabilities.
struct Bf16Kv {
    static constexpr KvType type = KvType::bf16;
    static constexpr HalfType half = HalfType::bf16;  // type of the products' operands
    static constexpr int load_dims = 32;              // dimensions in a 64-byte panel of K

    static __device__ void multiply_add(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                        uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    // Returns the first dimension of a lane's 16-byte load i of q.
    static __device__ int q_dim(int i, int c) { return 32 * i + 8 * c; }
    // Loads two adjacent cache elements as operands.
    static __device__ uint32_t load_two(const uint8_t* at) { return *reinterpret_cast<const uint32_t*>(at); }
    static __device__ uint32_t operand_of(uint32_t two_bf16) { return two_bf16; }
    static __device__ uint32_t pack(float low, float high) {
        const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&v);
    }
    // Computes one chain over the dimensions for each of `Count` tiles of tokens and `Tiles` groups of eight columns.
    template <int Dims, int Tiles, int Count>
    static __device__ void scores(float (&s)[Count][Tiles][4], const uint8_t* tiles, int pitch,
                                  const uint32_t (&q)[Tiles][Dims / 8], int lane) {
#pragma unroll
        for (int p = 0; p < Dims / 32; ++p) {
            uint4 upper[Count], lower[Count];
#pragma unroll
            for (int i = 0; i < Count; ++i) {
                upper[i] = shared_load(tiles + i * pitch + 1024 * p + 16 * lane);
                lower[i] = shared_load(tiles + i * pitch + 1024 * p + 512 + 16 * lane);
            }
#pragma unroll
            for (int t = 0; t < Tiles; ++t) {
#pragma unroll
                for (int i = 0; i < Count; ++i)
                    multiply_add(s[i][t], upper[i].x, lower[i].x, upper[i].y, lower[i].y, q[t][4 * p], q[t][4 * p + 1]);
#pragma unroll
                for (int i = 0; i < Count; ++i)
                    multiply_add(s[i][t], upper[i].z, lower[i].z, upper[i].w, lower[i].w, q[t][4 * p + 2],
                                 q[t][4 * p + 3]);
            }
        }
    }
    // Sets all but the first `valid` of a lane's four tokens to zero.
    static __device__ uint4 masked(uint4 w, int valid) {
        const uint32_t first = bytes_below(valid, 2), second = bytes_below(valid - 2, 2);
        return {w.x & first, w.y & second, w.z & first, w.w & second};
    }
    // Returns the operands of `Slices` slices of 16 dimensions from slice `first` on.
    template <int Slices>
    static __device__ void load_values(uint4 (&w)[Slices], const uint8_t* tile, int first, int lane) {
#pragma unroll
        for (int i = 0; i < Slices; ++i) w[i] = shared_load(tile + 512 * (first + i) + 16 * lane);
    }
    template <int Slices, int Tiles>
    static __device__ void values(float (&o)[Slices][Tiles][4], const uint4 (&w)[Slices], const uint2 (&p)[Tiles]) {
#pragma unroll
        for (int i = 0; i < Slices; ++i)
#pragma unroll
            for (int t = 0; t < Tiles; ++t) multiply_add(o[i][t], w[i].x, w[i].z, w[i].y, w[i].w, p[t].x, p[t].y);
    }
};

struct E4m3Kv {
    static constexpr KvType type = KvType::e4m3;
    static constexpr HalfType half = HalfType::f16;
    static constexpr int load_dims = 64;

    static __device__ void multiply_add(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                        uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
    static __device__ int q_dim(int i, int c) { return 64 * (i / 2) + 16 * c + 8 * (i % 2); }
    static __device__ uint32_t pack(float low, float high) {
        const __half2 v = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&v);
    }
    static __device__ uint32_t operand_of(uint32_t two_bf16) {
        constexpr float most = 65504.0f;
        const float low = __uint_as_float(two_bf16 << 16), high = __uint_as_float(two_bf16 & 0xFFFF0000u);
        return pack(fminf(fmaxf(low, -most), most), fminf(fmaxf(high, -most), most));
    }
    static __device__ uint32_t load_two(const uint8_t* at) {
        return two(*reinterpret_cast<const uint16_t*>(at), false);
    }
    static __device__ uint32_t two(uint32_t word, bool upper) {
        uint32_t y;
        const auto x = static_cast<uint16_t>(upper ? word >> 16 : word);
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(x));
        return y;
    }
    template <int Dims, int Tiles, int Count>
    static __device__ void scores(float (&s)[Count][Tiles][4], const uint8_t* tiles, int pitch,
                                  const uint32_t (&q)[Tiles][Dims / 8], int lane) {
#pragma unroll
        for (int p = 0; p < Dims / 64; ++p) {
            uint4 upper[Count], lower[Count];
#pragma unroll
            for (int i = 0; i < Count; ++i) {
                upper[i] = shared_load(tiles + i * pitch + 1024 * p + 16 * lane);
                lower[i] = shared_load(tiles + i * pitch + 1024 * p + 512 + 16 * lane);
            }
#pragma unroll
            for (int k = 0; k < 4; ++k)
#pragma unroll
                for (int i = 0; i < Count; ++i) {
                    const uint32_t u = k == 0 ? upper[i].x : k == 1 ? upper[i].y : k == 2 ? upper[i].z : upper[i].w;
                    const uint32_t l = k == 0 ? lower[i].x : k == 1 ? lower[i].y : k == 2 ? lower[i].z : lower[i].w;
                    const uint32_t a0 = two(u, false), a1 = two(l, false), a2 = two(u, true), a3 = two(l, true);
#pragma unroll
                    for (int t = 0; t < Tiles; ++t)
                        multiply_add(s[i][t], a0, a1, a2, a3, q[t][8 * p + 2 * k], q[t][8 * p + 2 * k + 1]);
                }
        }
    }
    static __device__ uint4 masked(uint4 w, int valid) {
        const uint32_t mask = bytes_below(valid, 1);
        return {w.x & mask, w.y & mask, w.z & mask, w.w & mask};
    }
    // A slice's operands are half of 16 bytes (w.x, w.y).
    template <int Slices>
    static __device__ void load_values(uint4 (&w)[Slices], const uint8_t* tile, int first, int lane) {
#pragma unroll
        for (int i = 0; i < Slices; ++i) {
            const int slice = first + i;
            const uint2 words = *reinterpret_cast<const uint2*>(tile + slice / 2 * 512 + slice % 2 * 8 + 16 * lane);
            w[i] = make_uint4(words.x, words.y, 0, 0);
        }
    }
    template <int Slices, int Tiles>
    static __device__ void values(float (&o)[Slices][Tiles][4], const uint4 (&w)[Slices], const uint2 (&p)[Tiles]) {
#pragma unroll
        for (int i = 0; i < Slices; ++i) {
            const uint32_t a0 = two(w[i].x, false), a1 = two(w[i].y, false), a2 = two(w[i].x, true),
                           a3 = two(w[i].y, true);
#pragma unroll
            for (int t = 0; t < Tiles; ++t) multiply_add(o[i][t], a0, a1, a2, a3, p[t].x, p[t].y);
        }
    }
};

}  // namespace nibble::cuda
