// FP8 weights: E4M3 codes and FP32 scales that multiply on decode. One scale per tensor, per output row or per 128 x
// 128 tile. scale = amax / 448; an amax of zero gives scale 1 (Model Optimizer writes NaN bytes for an all-zero matrix
// with a per-tensor scale; nibble does not).
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

// Rounds x to a dtype (BF16, F16 or F32) and back to FP32.
NIBBLE_HD constexpr float rounded_to_dtype(float x, DType dtype) {
    return dtype == DType::bf16 ? round_to_bf16(x) : dtype == DType::f16 ? fp16_to_float(fp16_from_float(x)) : x;
}

// Returns the divisor for a per-tensor scale. PyTorch on CUDA first rounds a zero-dimensional FP32 operand to the dtype
// of the weights; PyTorch on a CPU does not. The stored scale stays FP32 in both cases. A scale that would round to
// zero (F16: below 2^-25) is not rounded; Model Optimizer writes NaN bytes there.
NIBBLE_HD constexpr float fp8_tensor_divisor(float scale, Arithmetic arithmetic, DType weights) {
    const float rounded = arithmetic == Arithmetic::reciprocal ? rounded_to_dtype(scale, weights) : scale;
    return rounded > 0.0f ? rounded : scale;
}

// Codes saturate. Model Optimizer's cast does not: quotients beyond 464 become NaN in its exports. Only a searched
// scale below the maximum has such quotients.
//
// Per tensor: the quotient has the weights' dtype, so quotients of BF16 and F16 weights are rounded twice.
NIBBLE_HD constexpr uint8_t fp8_tensor_code(float w, float divisor, DType weights) {
    return e4m3_from_float_saturating(rounded_to_dtype(w / divisor, weights));
}

// Per row or tile: the scale is not zero-dimensional, so the quotient stays FP32.
NIBBLE_HD constexpr uint8_t fp8_code(float w, float scale) { return e4m3_from_float_saturating(w / scale); }

// Fake quantization in searches: k = 448 / amax, computed as reciprocal(amax) * 448. k is 1 if amax is at most 2^-24.
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
