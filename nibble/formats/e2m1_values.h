// E2M1 rounding to values instead of codes, for kernels that write value(code) * scale. The step of E2M1 is 1/2 below
// 2, 1 in [2, 4) and 2 from 4 on: half the largest power of two that is at most |x|, and at least 1/2. Adding a number
// whose FP32 spacing is that step rounds |x| to a whole step, ties to even. The exponent of that number follows from
// the exponent of |x|, so no comparison with the eight values and no decoding is needed.
//
// NaN becomes 6 with the NaN's sign, unlike the code functions of formats/, which return +6. Callers pass canonical
// NaNs, whose sign is clear (all results of FP32 arithmetic on NVIDIA GPUs).
#pragma once

#include "formats/minifloat.h"

namespace nibble {

namespace e2m1_steps {

NIBBLE_HD inline float at_most_six(float x) {  // min(|x|, 6); 6 for NaN
#ifdef __CUDA_ARCH__
    return fminf(fabsf(x), 6.0f);  // one instruction
#else
    return magnitude(x) < 6.0f ? magnitude(x) : 6.0f;
#endif
}
// Twice the step at `a` in [0, 6].
NIBBLE_HD constexpr uint32_t twice_step(float a) {
    const uint32_t power = float_bits(a) & 0x7F800000u;
    return power > 0x3F800000u ? power : 0x3F800000u;
}
NIBBLE_HD constexpr float spaced(uint32_t twice_step) { return float_from_bits(twice_step + 0x0B400000u); }

// Bits of 2^-126 * a, rounded down, for a in [0, 8). Below 1/4, 2^-26 is added first and that sum is rounded down too.
// The scaling puts FP32's smallest normal number where E2M1 has its own, so both have the same subnormal steps: bits 22
// and up are the E2M1 code.
NIBBLE_HD inline uint32_t scaled_down(float a) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(__fmul_rz(__fadd_rz(a, 0x1p-26f), 0x1p-126f));
#else
    return a < 1.0f ? static_cast<uint32_t>((double{a} + (a < 0.25f ? 0x1p-26 : 0.0)) * 0x1p23)
                    : float_bits(a) - (126u << 23);
#endif
}

}  // namespace e2m1_steps

// Returns e2m1_to_float(e2m1_from_float(x)): nearest, ties to even. -0 becomes +0; a negative number that rounds to
// zero becomes -0.
NIBBLE_HD inline float e2m1_value(float x) {
    using namespace e2m1_steps;
    const float a = at_most_six(x);
    const float by = spaced(twice_step(a));
    return float_from_bits(float_bits(a + by - by) | (float_bits(x + 0.0f) & 0x80000000u));
}

// Returns the code of e2m1_stochastic_byte(x, byte) in bits 22 to 24, the sign in bit 31 and the rest of the sum in the
// low bits. `byte` is in bits 14 to 21 of `random`; its other bits are 0. The sum of |x| and the byte's part of a step
// is rounded to FP32. For |x| below 1/4, a missing 2^-26 or less therefore counts as present; elsewhere the sum is
// exact where it matters. A carry of the integer sum enters the next binade exactly as it does for real numbers.
NIBBLE_HD inline uint32_t e2m1_drawn(float x, uint32_t random) {
    using namespace e2m1_steps;
    return (scaled_down(at_most_six(x)) + random) | (float_bits(x) & 0x80000000u);
}
inline constexpr uint32_t e2m1_drawn_mask = 0xFFC00000u;
// Places byte i of `word` (0 to 3) where e2m1_drawn() expects it.
NIBBLE_HD constexpr uint32_t e2m1_random(uint32_t word, int i) {
    const uint32_t at = i < 2 ? word : word >> 10;  // one shift for two bytes
    return i == 0 ? (at & 0xFFu) << 14 : i == 1 ? (at & 0xFF00u) << 6 : i == 2 ? (at & 0x3FC0u) << 8 : at & 0x3FC000u;
}
// The value of a result of e2m1_drawn().
NIBBLE_HD constexpr float e2m1_drawn_value(uint32_t drawn) {
    return float_from_bits(drawn & e2m1_drawn_mask) * 0x1p126f;
}

}  // namespace nibble
