// MX formats (OCP Microscaling 1.0): blocks of 32 along the input dimension, one E8M0 exponent per block, no tensor
// scale.
//   MXFP4: E2M1 codes, MXFP8: E4M3 codes; value = element * 2^(byte - 127).
// The exponent of weights and of MXFP8 inputs is the smallest e with amax <= max_element * 2^e, so nothing clips. This
// is the rule of Model Optimizer and of Blackwell's conversion instruction. The OCP specification allows any rule; its
// own example rounds amax down to a power of two, which clips by up to 2x. The code works on the bits and needs no
// logarithm.
#pragma once

#include "formats/minifloat.h"

namespace nibble {

inline constexpr int mx_block = 32;

// Returns the biased smallest e >= -127 with a <= mantissa_limit * 2^(e + max_exponent). `mantissa_limit` is the 23
// bits of 1.xxx.
NIBBLE_HD constexpr uint8_t mx_exponent_byte(float amax, int max_exponent, uint32_t mantissa_limit) {
    const uint32_t bits = float_bits(amax);
    const int exponent = static_cast<int>(bits >> 23) - 127;  // subnormals end below the clamp anyway
    const int e = exponent - max_exponent + ((bits & 0x7FFFFFu) > mantissa_limit ? 1 : 0);
    return static_cast<uint8_t>((e < -127 ? -127 : e > 127 ? 127 : e) + 127);
}

NIBBLE_HD constexpr uint8_t mxfp4_scale(float amax) { return mx_exponent_byte(amax, 2, 0x400000u); }  // 6 = 1.5 * 2^2
NIBBLE_HD constexpr uint8_t mxfp8_scale(float amax) {
    return mx_exponent_byte(amax, 8, 0x600000u);
}  // 448 = 1.75 * 2^8

// MXFP4 inputs have their own rule. Only compressed-tensors files have such inputs, and compressed-tensors (run by
// transformers) and vLLM's emulation agree: amax from 1.75 * 2^n on counts as 2^(n+1), and the power of two of amax
// maps to 4. The largest element is then in [3.5, 7) and saturates at 6. Ties go to even.
NIBBLE_HD constexpr uint8_t mxfp4_input_scale(float amax) { return mx_exponent_byte(amax, 2, 0x5FFFFFu); }

// Returns 2^(127 - byte), the exact inverse of the block scale. Byte 0 gives 2^127, byte 254 gives 2^-127 (subnormal).
NIBBLE_HD constexpr float mx_inverse_scale(uint8_t byte) {
    return byte >= 254 ? float_from_bits(0x00400000u) : float_from_bits(uint32_t(254 - byte) << 23);
}

NIBBLE_HD constexpr uint8_t mxfp4_code(float w, float inverse_scale) {
    return e2m1_from_float_ties_down(w * inverse_scale);
}
NIBBLE_HD constexpr uint8_t mxfp4_input_code(float x, float inverse_scale) {
    return e2m1_from_float(x * inverse_scale);
}
NIBBLE_HD constexpr uint8_t mxfp8_code(float w, float inverse_scale) {
    return e4m3_from_float_saturating(w * inverse_scale);
}

}  // namespace nibble
