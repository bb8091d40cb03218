// The columns of q, k, v, z, b and a in the projections of a gated delta net, and the order of the elements of q and k.
#pragma once

#include "kernels/cuda/delta/delta_launch.h"
#include "kernels/cuda/primitives/convolution.cuh"

namespace nibble::cuda {

// Place of element i of a key: four adjacent places hold elements i, i + 4, i + 8, i + 12, which one thread adds up.
__device__ inline int key_place(int i) { return i / 16 * 16 + i % 4 * 4 + i / 4 % 4; }

// Returns the column of channel c (q, k, v; all heads each) in a row of `projected`.
__device__ inline int channel_column(const DeltaArgs& d, int c) {
    if (!d.by_key_head) return c;
    const int values = d.per_key * d.value_dim, group = 2 * d.key_dim + 2 * values;
    if (c < 2 * d.keys) {
        const int of_k = c >= d.keys, i = c - of_k * d.keys;
        return i / d.key_dim * group + of_k * d.key_dim + i % d.key_dim;
    }
    const int i = c - 2 * d.keys;
    return i / values * group + 2 * d.key_dim + i % values;
}
// Returns the column of element i < inner of z in a row of `projected`.
__device__ inline int z_column(const DeltaArgs& d, int i) {
    if (!d.by_key_head) return d.channels + i;
    const int values = d.per_key * d.value_dim;
    return i / values * (2 * d.key_dim + 2 * values) + 2 * d.key_dim + values + i % values;
}
// Return the column of b or a of value head h in a row of `gates`.
__device__ inline int b_column(const DeltaArgs& d, int h) {
    return d.by_key_head ? h / d.per_key * 2 * d.per_key + h % d.per_key : h;
}
__device__ inline int a_column(const DeltaArgs& d, int h) {
    return b_column(d, h) + (d.by_key_head ? d.per_key : d.value_heads);
}

__device__ inline Convolution convolution_of(const DeltaArgs& d) {
    return {d.projected, d.stride, d.conv_weight, nullptr, d.channels, d.conv};
}

// Returns (s0 + s1) + (s2 + s3), the sums of four adjacent threads.
__device__ inline float over_parts(float sum) {
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    return sum + __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
}

// Returns the decay that follows from an element of a.
__device__ inline float decay_of(float gate, float dt_bias, float a) {
    const double x = static_cast<double>(rounded(gate)) + dt_bias;
    const double rest = log1p(exp(-fabs(x))), step = x > 0 ? x + rest : rest;
    return static_cast<float>(exp(step * a));
}
// Returns decay (one by channel) and beta of a value head from a row of `gates`.
__device__ inline float2 delta_steps(const DeltaArgs& d, const float* gates, int h) {
    const float b = rounded(gates[b_column(d, h)]), beta = 1.0f / (1.0f + exp_of(-b));
    return {d.by_channel ? 1.0f : decay_of(gates[a_column(d, h)], d.dt_bias[h], d.a[h]), beta};
}

}  // namespace nibble::cuda
