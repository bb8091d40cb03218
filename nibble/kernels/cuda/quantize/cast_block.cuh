// Reading, rounding and writing of blocks of L numbers along a reduction, for casts of training's operands. A thread
// block has a tile of 64 rows and 128 columns. A thread has 64 of its numbers, as blocks of L adjacent numbers in a
// row, or as 64 / L adjacent columns of L rows.
#pragma once

#include "formats/e2m1_values.h"
#include "kernels/cuda/primitives/block16.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/philox_rounds.cuh"
#include "kernels/cuda/quantize/cast_launch.h"

namespace nibble::cuda {

inline constexpr int cast_threads = 128, cast_rows = 64, cast_cols = 128;
inline constexpr int cast_each = cast_rows * cast_cols / cast_threads;

__device__ inline float low_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ inline float high_of(uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000u); }

// Returns the factor of a row of the source.
__device__ inline float source_scale(const CastArgs& a, int64_t row) {
    return a.source_scale[a.by_row ? row : 0] * a.factor;
}
__device__ inline uint32_t scaled(uint32_t pair, float scale) {
    return pair_of(low_of(pair) * scale, high_of(pair) * scale);
}

// ---- L adjacent numbers in a row ----

template <int L>
__device__ void load_row(const CastArgs& a, int64_t row, int64_t col, uint32_t (&pair)[L / 2]) {
    const uint16_t* const from = a.x + row * a.stride + col;
#pragma unroll
    for (int c = 0; c < L / 8; ++c) {
        uint4 w{};
        if (col + 8 * c < a.cols) w = *reinterpret_cast<const uint4*>(from + 8 * c);
        pair[4 * c] = w.x, pair[4 * c + 1] = w.y, pair[4 * c + 2] = w.z, pair[4 * c + 3] = w.w;
    }
}
template <int L>
__device__ void scale_row(const CastArgs& a, int64_t row, uint32_t (&pair)[L / 2]) {
    if (!a.source_scale) return;
    const float scale = source_scale(a, row);
#pragma unroll
    for (uint32_t& p : pair) p = scaled(p, scale);
}
template <int L>
__device__ void numbers_of(const uint32_t (&pair)[L / 2], float (&z)[L]) {
#pragma unroll
    for (int i = 0; i < L; ++i) z[i] = i % 2 ? high_of(pair[i / 2]) : low_of(pair[i / 2]);
}
// Stores less than a block if the reduction is not padded.
template <int L>
__device__ void store_row(const CastArgs& a, int64_t row, int64_t col, const uint32_t (&pair)[L / 2]) {
    uint16_t* const to = a.values + row * a.pitch + col;
#pragma unroll
    for (int c = 0; c < L / 8; ++c)
        if (col + 8 * c < a.pitch)
            *reinterpret_cast<uint4*>(to + 8 * c) = {pair[4 * c], pair[4 * c + 1], pair[4 * c + 2], pair[4 * c + 3]};
}

// ---- 64 / L columns of L rows, in pairs ----

template <int L>
inline constexpr int column_pairs = cast_each / L / 2;
template <int L>
using ColumnPairs = uint32_t[L][column_pairs<L>];

template <int N>
__device__ void load_pairs(const uint16_t* from, uint32_t (&pair)[N]) {
    if constexpr (N == 2) {
        const uint2 w = *reinterpret_cast<const uint2*>(from);
        pair[0] = w.x, pair[1] = w.y;
    } else {
        pair[0] = *reinterpret_cast<const uint32_t*>(from);
    }
}
template <int N>
__device__ void store_pairs(uint16_t* to, const uint32_t (&pair)[N]) {
    if constexpr (N == 2)
        *reinterpret_cast<uint2*>(to) = {pair[0], pair[1]};
    else
        *reinterpret_cast<uint32_t*>(to) = pair[0];
}

// Loads zeros after the last row and the last column.
template <int L>
__device__ void load_columns(const CastArgs& a, int64_t row0, int64_t col, ColumnPairs<L>& w) {
    const uint16_t* const from = a.x + row0 * a.stride + col;
    const int64_t rows = col < a.cols ? a.rows - row0 : 0;
    if (rows >= L) {
#pragma unroll
        for (int i = 0; i < L; ++i) load_pairs(from + i * a.stride, w[i]);
    } else {
#pragma unroll
        for (int i = 0; i < L; ++i) {
#pragma unroll
            for (uint32_t& p : w[i]) p = 0;
            if (i < rows) load_pairs(from + i * a.stride, w[i]);
        }
    }
    if (!a.source_scale) return;
#pragma unroll
    for (int i = 0; i < L; ++i) {
        if (i >= rows) break;
        const float scale = source_scale(a, row0 + i);
#pragma unroll
        for (uint32_t& p : w[i]) p = scaled(p, scale);
    }
}
template <int L>
__device__ void numbers_of_column(const ColumnPairs<L>& w, int column, float (&z)[L]) {
#pragma unroll
    for (int i = 0; i < L; ++i) z[i] = column % 2 ? high_of(w[i][column / 2]) : low_of(w[i][column / 2]);
}
// Number of rows before `end`.
template <int L>
__device__ void store_columns(const CastArgs& a, int64_t row0, int64_t col, int64_t end, const ColumnPairs<L>& w) {
    uint16_t* const to = a.values + row0 * a.pitch + col;
    if (row0 + L <= end) {
#pragma unroll
        for (int i = 0; i < L; ++i) store_pairs(to + i * a.pitch, w[i]);
    } else {
#pragma unroll
        for (int i = 0; i < L; ++i)
            if (row0 + i < end) store_pairs(to + i * a.pitch, w[i]);
    }
}

// ---- Maxima, which drop NaN ----

template <int L>
__device__ float largest(const float (&z)[L]) {
    float m = 0.0f;
#pragma unroll
    for (const float v : z) m = fmaxf(m, fabsf(v));
    return m;
}
// Returns the larger of each of two pairs.
__device__ inline uint32_t larger_of(uint32_t a, uint32_t b) {
    const __nv_bfloat162 m =
        __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&a), __habs2(*reinterpret_cast<const __nv_bfloat162*>(&b)));
    return *reinterpret_cast<const uint32_t*>(&m);
}
__device__ inline float larger_half(uint32_t pair) { return fmaxf(low_of(pair), high_of(pair)); }

// Returns the maximum over a thread block to all its threads.
template <int Threads>
__device__ float block_max(float m) {
    __shared__ float of_warp[Threads / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFFu, m, step));
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = m;
    __syncthreads();
#pragma unroll
    for (const float w : of_warp) m = fmaxf(m, w);
    return m;
}
// Magnitudes order like their bits; a maximum does not depend on the order of updates.
template <int Threads>
__device__ void raise(float* amax, float m) {
    m = block_max<Threads>(m);
    if (threadIdx.x == 0 && m > 0.0f) atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(m));
}

// ---- The rotation: hadamard16() of formats/, rounded to BF16 ----

__device__ inline void rotation_sums(float (&z)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i)
        if (rotation_signs >> i & 1u) z[i] = -z[i];
    hadamard16_sums(z);
}
__device__ inline void rotate(float (&z)[16]) {
    rotation_sums(z);
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
        const uint32_t pair = pair_of(z[i] * 0.25f, z[i + 1] * 0.25f);
        z[i] = low_of(pair), z[i + 1] = high_of(pair);
    }
}
// Returns the largest magnitude of rotate()'s result: rounding preserves the order.
__device__ inline float rotated_largest(float (&z)[16]) {
    rotation_sums(z);
    return rounded(largest(z) * 0.25f);
}

}  // namespace nibble::cuda
