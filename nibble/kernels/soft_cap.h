// c tanh(x / c) in FP32 as a fixed sequence of operations, so that every instruction set gives the same bits. Cephes'
// tanhf: a polynomial below 0.625, 1 - 2 / (exp(2 z) + 1) above it. kernels/cpu/soft_cap.inc has the same steps.
#pragma once

#include "kernels/exp.h"

#include <cmath>

namespace nibble {

inline constexpr float tanh_terms[5] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                                        -3.33332819422e-1f};

inline float soft_cap_f32(float x, float cap) {
    const float z = x / cap, a = std::fabs(z);
    float t;
    if (a < 0.625f) {
        const float z2 = z * z;
        float p = tanh_terms[0];
        for (int i = 1; i < 5; ++i) p = std::fma(p, z2, tanh_terms[i]);
        t = std::fma(p * z2, z, z);
    } else {
        t = std::copysign(1.0f - 2.0f / (exp_f32(a + a) + 1.0f), z);
    }
    return cap * t;
}

}  // namespace nibble
