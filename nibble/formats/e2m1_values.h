// E2M1 rounded to values instead of codes, for kernels that write value(code) * scale. The step of E2M1 is 1/2 below 2,
// 1 below 4, 2 above: half the power of two at or below |x|, at least 1/2. Adding a number whose FP32 spacing is that
// step rounds |x| to a whole step, ties to even, and its exponent follows from that of |x|, so nothing is compared with
// the eight values and no code is decoded.
//
// A NaN is 6 with its own sign: callers have canonical NaNs, whose sign is clear (all results of FP32 arithmetic on
// NVIDIA GPUs), where the codes of formats/ always have a positive one.
#pragma once

#include "formats/minifloat.h"

namespace nibble {

namespace e2m1_steps {

NIBBLE_HD inline float at_most_six(float a) {  // 6 for NaN
#ifdef __CUDA_ARCH__
    return fminf(a, 6.0f);
#else
    return a < 6.0f ? a : 6.0f;
#endif
}
// Twice the step of a in [0, 6], and a number whose spacing is the step: 1.5 * 2^22 times as large.
NIBBLE_HD constexpr uint32_t twice_step(float a) {
    const uint32_t power = float_bits(a) & 0x7F800000u;
    return power > 0x3F800000u ? power : 0x3F800000u;
}
NIBBLE_HD constexpr float spaced(uint32_t twice_step) { return float_from_bits(twice_step + 0x0B400000u); }

// t in [0, 8) rounded down to the spacing of `spaced`.
NIBBLE_HD inline float whole_steps(float t, float spaced) {
#ifdef __CUDA_ARCH__
    return __fadd_rz(t, spaced) - spaced;
#else
    const float nearest = t + spaced - spaced;
    return nearest > t ? nearest - spaced * 0x1p-23f / 1.5f : nearest;  // 1.5 * 2^23 steps
#endif
}

}  // namespace e2m1_steps

// e2m1_to_float(e2m1_from_float(x)): to nearest, ties to even. -0 becomes +0; what is negative and rounds to zero is
// -0.
NIBBLE_HD inline float e2m1_value(float x) {
    using namespace e2m1_steps;
    const float a = at_most_six(magnitude(x));
    const float by = spaced(twice_step(a));
    return float_from_bits(float_bits(a + by - by) | (float_bits(x + 0.0f) & 0x80000000u));
}

// e2m1_to_float(e2m1_stochastic_byte(x, byte)); `byte` lies in bits 15 ... 22 of `random`, others are 0.
NIBBLE_HD inline float e2m1_stochastic_value(float x, uint32_t random) {
    using namespace e2m1_steps;
    const float a = at_most_six(magnitude(x));
    const uint32_t twice = twice_step(a);
    const float part = float_from_bits(twice | random) - float_from_bits(twice);  // exact: byte / 256 of two steps
    const float t = part * 0.5f + a;
    return float_from_bits(float_bits(whole_steps(t, spaced(twice))) | (float_bits(x) & 0x80000000u));
}
// Byte i of a word where e2m1_stochastic_value() takes it.
NIBBLE_HD constexpr uint32_t e2m1_random(uint32_t word, int i) {
    return (i < 2 ? word << (15 - 8 * i) : word >> (8 * i - 15)) & 0x7F8000u;
}

}  // namespace nibble
