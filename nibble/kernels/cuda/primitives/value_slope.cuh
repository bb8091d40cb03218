// Activations with their derivatives, equal to kernels/elementwise_backward.cpp except for the last bit of a
// reciprocal.
#pragma once

#include "kernels/cuda/primitives/rows8.cuh"

namespace nibble::cuda {

struct ValueAndSlope {
    float value, slope;
};

__device__ inline ValueAndSlope value_and_slope(int activation, float x) {
    constexpr float c0 = 1.5957691216f, c1 = 0.0713548162726f, c1_3 = 0.2140644488178f;
    if (activation == 0) {
        const float s = __fdividef(1.0f, 1.0f + exp_of_number(-x));
        return {x * s, s * fmaf(x, 1.0f - s, 1.0f)};
    }
    if (activation == 1) {
        const float square = x * x, s = __fdividef(1.0f, 1.0f + exp_of_number(-(x * fmaf(c1, square, c0)))),
                    value = x * s;
        return {value, fmaf(value * (1.0f - s), fmaf(c1_3, square, c0), s)};
    }
    const float positive = x > 0.0f || x != x ? x : 0.0f;
    return {positive * positive, positive + positive};
}

}  // namespace nibble::cuda
