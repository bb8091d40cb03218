// FP8 weights: E4M3 codes with FP32 scales that multiply on decode: one per tensor, one per output row, or one per
// 128 x 128 tile.  scale = amax / 448; a zero amax gives scale 1 (Model Optimizer writes NaN bytes for an all-zero
// matrix of the per-tensor format; nibble does not).
#pragma once

#include "base/dtype.h"
#include "formats/arithmetic.h"
#include "formats/minifloat.h"

namespace nibble {

inline constexpr int fp8_tile = 128;

NIBBLE_HD constexpr float fp8_scale(float amax, Arithmetic arithmetic) {
    const float s = div_const(amax, e4m3_max, arithmetic);
    return s > 0.0f ? s : 1.0f;
}

// x as a tensor of this dtype (BF16, F16 or F32) holds it.
NIBBLE_HD constexpr float rounded_to_dtype(float x, DType dtype) {
    return dtype == DType::bf16 ? round_to_bf16(x) : dtype == DType::f16 ? fp16_to_float(fp16_from_float(x)) : x;
}

// The divisor of a per-tensor scale. PyTorch on CUDA rounds a zero-dimensional FP32 operand to the dtype of the other
// operand, the weights', first; on a CPU it does not. The stored scale stays FP32 either way. A scale that would vanish
// (F16: below 2^-25) is not rounded: Model Optimizer writes NaN bytes there.
NIBBLE_HD constexpr float fp8_tensor_divisor(float scale, Arithmetic arithmetic, DType weights) {
    const float rounded = arithmetic == Arithmetic::reciprocal ? rounded_to_dtype(scale, weights) : scale;
    return rounded > 0.0f ? rounded : scale;
}

// Codes saturate. Model Optimizer casts without: quotients beyond 464, which only a searched scale below the maximum
// has, become NaN in its exports.
//
// Per tensor: the quotient is a tensor of the weights' dtype, so that of BF16 and F16 weights is rounded twice.
NIBBLE_HD constexpr uint8_t fp8_tensor_code(float w, float divisor, DType weights) {
    return e4m3_from_float_saturating(rounded_to_dtype(w / divisor, weights));
}

// Per row or tile: the scale has dimensions, the quotient stays FP32.
NIBBLE_HD constexpr uint8_t fp8_code(float w, float scale) { return e4m3_from_float_saturating(w / scale); }

// Fake quantization inside searches: k = 448 / amax, evaluated as reciprocal(amax) * 448; 1 for a vanishing amax.
struct Fp8FakeScale {
    float up, down;  // k and 1/k
};

NIBBLE_HD constexpr Fp8FakeScale fp8_fake_scale(float amax) {
    const float k = amax > 5.9604645e-8f ? (1.0f / amax) * e4m3_max : 1.0f;  // 2^-24
    return {k, 1.0f / k};
}

NIBBLE_HD constexpr float fp8_fake_value(float w, float amax) {
    const Fp8FakeScale k = fp8_fake_scale(amax);
    return e4m3_to_float(e4m3_from_float_saturating(w * k.up)) * k.down;
}

}  // namespace nibble
