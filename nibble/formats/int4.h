// INT4 weights of compressed-tensors' W4A16 (symmetric, groups of 128 along the input dimension): value = (code - 8) *
// scale. Codes are unsigned, the integers -8 to 7 plus 8. A scale is a BF16 number, amax / 7.5; a group of zeros has
// 2^-7, BF16's epsilon. So the largest weight becomes 7 (7.5 rounds to 8, which is out of range) or -8.
// Source: compressed-tensors 0.20 (quantization/utils/helpers.py, lifecycle/forward.py).
#pragma once

#include "formats/fp8.h"

namespace nibble {

inline constexpr int int4_group = 128;
inline constexpr float int4_most = 8.0f;  // largest magnitude of a code

NIBBLE_HD constexpr float int4_to_float(uint8_t code) { return static_cast<float>(code) - 8.0f; }

// The division is one of tensors, so both arithmetic profiles divide.
NIBBLE_HD constexpr float int4_scale(float amax) {
    const float scale = round_to_bf16(amax / 7.5f);
    return scale > 0.0f ? scale : 0.0078125f;
}

// The quotient has the dtype of the weights; ties go to even.
NIBBLE_HD constexpr uint8_t int4_code(float w, float scale, DType weights) {
    const float q = rounded_to_dtype(w / scale, weights);
    const float limited = q < -8.0f ? -8.0f : q > 7.0f ? 7.0f : q;
    constexpr float magic = 12582912.0f;  // 1.5 * 2^23: sums are whole numbers
    return static_cast<uint8_t>(float_bits(limited + magic) - float_bits(magic) + 8);
}

}  // namespace nibble
