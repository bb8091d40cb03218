// Stochastic rounding, unbiased on average (NVFP4 gradients, FP16 optimizer states), and the Hadamard transform that
// spreads outliers over a block.
#pragma once

#include "formats/nvfp4.h"

namespace nibble {

// Rounds |x| to a magnitude of E2M1, up with a probability equal to its distance from the lower neighbour. `random` is
// uniform on 0 ... 65535. Saturates at 6; representable values do not change.
// The step is 1/2 below 2, 1 below 4, else 2. Within a binade, code = floor(x / step + random / 65536).
NIBBLE_HD constexpr uint8_t e2m1_magnitude_stochastic(float x, uint32_t random) {
    const float a = magnitude(x);
    if (!(a < 6.0f)) return 7;
    const float per_step = a < 2.0f ? 2.0f : a < 4.0f ? 1.0f : 0.5f;
    const int base = a < 2.0f ? 0 : a < 4.0f ? 2 : 4;  // codes below the binade, less the steps below it
    const float steps = a * per_step;                  // below 4; exact
    const auto whole = static_cast<int>(steps);
    const float fraction = steps - static_cast<float>(whole);  // exact
    return static_cast<uint8_t>(base + whole + (fraction * 65536.0f > static_cast<float>(random) ? 1 : 0));
}

NIBBLE_HD constexpr uint8_t nvfp4_code_stochastic(float w, float decode_scale, uint32_t random) {
    const float x = w / decode_scale;
    return static_cast<uint8_t>(e2m1_magnitude_stochastic(x, random) | (x < 0.0f ? 8u : 0u));
}

// Rounds x to FP16, up in magnitude with a probability equal to its distance from the lower neighbour. `random` is
// uniform on 0 ... 65535; normal numbers lose 13 bits and use its top 13. Representable values do not change; finite
// values saturate at 65504.
NIBBLE_HD constexpr uint16_t fp16_stochastic(float x, uint32_t random) {
    const uint32_t bits = float_bits(x), rest = bits & 0x7FFFFFFFu;
    const uint32_t sign = bits >> 31 << 15;
    if (rest >= 0x7F800000u) return fp16_from_float(x);
    if (rest < 0x38800000u) {  // below 2^-14: whole steps of 2^-24
        const float steps = float_from_bits(rest) * 16777216.0f;
        const auto whole = static_cast<uint32_t>(steps);
        const float fraction = steps - static_cast<float>(whole);
        return static_cast<uint16_t>(sign | (whole + (fraction * 65536.0f > static_cast<float>(random) ? 1u : 0u)));
    }
    const uint32_t code = ((rest + (random >> 3)) >> 13) - (112u << 10);
    return static_cast<uint16_t>(sign | (code > 0x7BFFu ? 0x7BFFu : code));
}

// The unnormalised 16-point Walsh-Hadamard transform in FP32, in place: four stages of sums and differences at
// distances 1, 2, 4, 8.
NIBBLE_HD constexpr void hadamard16_sums(float (&w)[16]) {
    for (int distance = 1; distance < 16; distance *= 2)
        for (int i = 0; i < 16; ++i)
            if ((i & distance) == 0) {
                const float a = w[i], b = w[i + distance];
                w[i] = a + b;
                w[i + distance] = a - b;
            }
}

// The orthonormal 16-point Walsh-Hadamard transform of sign[i] * w[i], in place: hadamard16_sums(), then times 1/4. A
// set bit i of `signs` negates element i first (a random diagonal, so that the rotation differs from tensor to tensor).
NIBBLE_HD constexpr void hadamard16(float (&w)[16], uint32_t signs) {
    for (int i = 0; i < 16; ++i)
        if (signs >> i & 1u) w[i] = -w[i];
    hadamard16_sums(w);
    for (int i = 0; i < 16; ++i) w[i] = w[i] * 0.25f;
}

}  // namespace nibble
