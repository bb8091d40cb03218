// Rows of BF16 eight at a time, and activations with their derivatives, as kernels/elementwise_backward.cpp has them.
#pragma once

#include "kernels/cuda/common/elementwise.cuh"

namespace nibble::cuda {

__device__ inline void unpack8(const std::byte* from, float (&x)[8]) {
    const uint4 w = *reinterpret_cast<const uint4*>(from);
    const uint32_t word[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(i % 2 ? word[i / 2] & 0xFFFF0000u : word[i / 2] << 16);
}
__device__ inline void pack8(std::byte* to, const float (&x)[8]) {
    *reinterpret_cast<uint4*>(to) = {pair_of(x[0], x[1]), pair_of(x[2], x[3]), pair_of(x[4], x[5]),
                                     pair_of(x[6], x[7])};
}

struct ValueAndSlope {
    float value, slope;
};

__device__ inline ValueAndSlope value_and_slope(int activation, float x) {
    constexpr float c0 = 1.5957691216f, c1 = 0.0713548162726f, c1_3 = 0.2140644488178f;
    if (activation == 0) {
        const float s = 1.0f / (1.0f + exp_of(-x));
        return {x * s, s * fmaf(x, 1.0f - s, 1.0f)};
    }
    if (activation == 1) {
        const float square = x * x, s = 1.0f / (1.0f + exp_of(-(x * fmaf(c1, square, c0)))), value = x * s;
        return {value, fmaf(value * (1.0f - s), fmaf(c1_3, square, c0), s)};
    }
    const float positive = x > 0.0f || x != x ? x : 0.0f;
    return {positive * positive, positive + positive};
}

}  // namespace nibble::cuda
