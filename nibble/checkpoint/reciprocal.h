// Scales that compressed-tensors stores as divisors. Readers take the FP32 reciprocal: scale = 1/G, correctly rounded.
//
// A scale s = 1.xxx * 2^e has an exact divisor in these cases (measured over all 2^23 mantissas, tests/checkpoint):
//   1.xxx up to sqrt(2)   a G with 1/G == s always exists
//   above                 it may not exist, because reciprocals of adjacent G differ by up to two steps of s: 17 % of
//                         all mantissas have none. The nearest G gives a scale that differs by one step (2^-23,
//                         relative).
// Of several G with the same reciprocal, the one with the most trailing zero bits is used. Compressors compute G in
// BF16, so a divisor that was read is written back bit for bit.
#pragma once

#include "formats/minifloat.h"

namespace nibble {

// The smallest normal number. Smaller scales have no finite reciprocal, or one that GPUs flush to zero when they invert
// it.
inline constexpr float least_divided_scale = 0x1p-126f;

inline int trailing_zero_bits(float x) { return float_bits(x) == 0 ? 32 : std::countr_zero(float_bits(x)); }

struct Divisor {
    float value = 0;     // the number to store: finite and positive, or 0 if `scale` has no finite reciprocal
    bool exact = false;  // 1 / value == scale
};

// Returns the divisor to store for a scale. Precondition: scale is finite and positive.
inline Divisor divisor_of(float scale) {
    const float nearest = 1.0f / scale;
    if (!is_finite(nearest) || nearest == 0.0f) return {};
    Divisor best{nearest, 1.0f / nearest == scale};
    for (int step = -2; step <= 2; ++step) {
        const float g = float_from_bits(float_bits(nearest) + static_cast<uint32_t>(step));
        if (!is_finite(g) || !(g > 0.0f) || 1.0f / g != scale) continue;
        if (!best.exact || trailing_zero_bits(g) > trailing_zero_bits(best.value)) best = {g, true};
    }
    return best;
}

}  // namespace nibble
