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

NIBBLE_HD inline float at_most_six(float x) {  // |x|; 6 for NaN
#ifdef __CUDA_ARCH__
    return fminf(fabsf(x), 6.0f);  // one instruction
#else
    return magnitude(x) < 6.0f ? magnitude(x) : 6.0f;
#endif
}
// Twice the step of a in [0, 6], and a number whose spacing is the step: 1.5 * 2^22 times as large.
NIBBLE_HD constexpr uint32_t twice_step(float a) {
    const uint32_t power = float_bits(a) & 0x7F800000u;
    return power > 0x3F800000u ? power : 0x3F800000u;
}
NIBBLE_HD constexpr float spaced(uint32_t twice_step) { return float_from_bits(twice_step + 0x0B400000u); }

// Bits of 2^-126 a, rounded down, for a in [0, 8) whose last bit is worth 2^-26 or less, or that has 2^-26 added,
// rounded down. Where E2M1 has its least normal number, FP32 has its own, and below it the same steps: bits from 22 on
// are those of E2M1.
NIBBLE_HD inline uint32_t scaled_down(float a) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(__fmul_rz(__fadd_rz(a, 0x1p-26f), 0x1p-126f));
#else
    return a < 1.0f ? static_cast<uint32_t>((double{a} + (a < 0.25f ? 0x1p-26 : 0.0)) * 0x1p23)
                    : float_bits(a) - (126u << 23);
#endif
}

}  // namespace e2m1_steps

// e2m1_to_float(e2m1_from_float(x)): to nearest, ties to even. -0 becomes +0; what is negative and rounds to zero is
// -0.
NIBBLE_HD inline float e2m1_value(float x) {
    using namespace e2m1_steps;
    const float a = at_most_six(x);
    const float by = spaced(twice_step(a));
    return float_from_bits(float_bits(a + by - by) | (float_bits(x + 0.0f) & 0x80000000u));
}

// The code of e2m1_stochastic_byte(x, byte) in bits 22 to 24, its sign in bit 31, below them what is left of the sum;
// `byte` lies in bits 14 ... 21 of `random`, others are 0. The sum of |x| and the byte's part of a step is rounded to
// FP32, so that of |x| below 1/4 those that lack 2^-26 or less count as if they did not; elsewhere it is exact where it
// matters, and the sum of the bits carries into the next binade as that of numbers does.
NIBBLE_HD inline uint32_t e2m1_drawn(float x, uint32_t random) {
    using namespace e2m1_steps;
    return (scaled_down(at_most_six(x)) + random) | (float_bits(x) & 0x80000000u);
}
inline constexpr uint32_t e2m1_drawn_mask = 0xFFC00000u;
// Byte i of `word` for it.
NIBBLE_HD constexpr uint32_t e2m1_random(uint32_t word, int i) {
    const uint32_t at = i < 2 ? word : word >> 10;  // one shift for two bytes
    return i == 0 ? (at & 0xFFu) << 14 : i == 1 ? (at & 0xFF00u) << 6 : i == 2 ? (at & 0x3FC0u) << 8 : at & 0x3FC000u;
}
// Its value.
NIBBLE_HD constexpr float e2m1_drawn_value(uint32_t drawn) {
    return float_from_bits(drawn & e2m1_drawn_mask) * 0x1p126f;
}

}  // namespace nibble
