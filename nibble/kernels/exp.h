// e^x in FP32 as a fixed sequence of correctly rounded operations, so that every instruction set gives the same bits
// (libm differs between machines). Cephes' expf: x = n ln 2 + r, a polynomial in r. Error below 1.2 ulp; results below
// 2^-126 become 0; NaN stays NaN. kernels/cpu/exp.inc has the same steps as vector operations.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace nibble {

inline constexpr float exp_highest = 88.72283f, exp_lowest = -87.33f;
inline constexpr float exp_log2e = 1.44269504f, exp_round = 12582912.0f;  // 1.5 * 2^23
inline constexpr float exp_ln2_high = 0.693359375f, exp_ln2_low = -2.12194440e-4f;
inline constexpr float exp_terms[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                       4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};

inline float exp_f32(float x) {
    if (x != x) return x;
    if (x < exp_lowest) return 0.0f;
    if (x > exp_highest) return std::numeric_limits<float>::infinity();
    const float shifted = std::fma(x, exp_log2e, exp_round);
    const float n = shifted - exp_round;
    float r = std::fma(-n, exp_ln2_high, x);
    r = std::fma(-n, exp_ln2_low, r);
    float p = exp_terms[0];
    for (int i = 1; i < 6; ++i) p = std::fma(p, r, exp_terms[i]);
    const float y = std::fma(p, r * r, r) + 1.0f;
    const uint32_t exponent = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(exp_round);
    return std::bit_cast<float>(std::bit_cast<uint32_t>(y) + (exponent << 23));
}

}  // namespace nibble
