// NVFP4: blocks of 16 E2M1 codes along the input dimension, one E4M3 scale per block, one FP32 scale per tensor.
//
//   value = e2m1(code) * (e4m3(block scale) * tensor scale)          the product of scales is formed first, in FP32
//
// The rules are those of Model Optimizer's export (docs/formats.md; NVIDIA TensorRT Model Optimizer 0.47). g is the
// largest |w| of the tensor, or of the fusion group if several tensors share the scale. m is 448, or 256 if blocks may
// be scaled up by 1.5 (four-over-six) and the largest block must still fit E4M3.
#pragma once

#include "formats/arithmetic.h"
#include "formats/minifloat.h"

namespace nibble {

inline constexpr int nvfp4_block = 16;

// weight_scale_2; 1 for an all-zero tensor.
NIBBLE_HD constexpr float nvfp4_tensor_scale(float g, float m, Arithmetic arithmetic) {
    const float s = div_const(g, e2m1_max * m, arithmetic);
    return s > 0.0f ? s : 1.0f;
}

// Clamps a block scale to what export may store: [2^-9, 448], E4M3 without zero.
NIBBLE_HD constexpr uint8_t nvfp4_store_scale(float s) {
    constexpr float smallest = 0.001953125f;  // 2^-9
    return e4m3_from_float(s < smallest ? smallest : s > e4m3_max ? e4m3_max : s);
}

// Block scale from the block's own maximum. A zero block stores 1.0 (0x38).
NIBBLE_HD constexpr uint8_t nvfp4_dynamic_scale(float block_amax, float tensor_scale) {
    const float s = block_amax / (e2m1_max * tensor_scale);
    return nvfp4_store_scale(s == 0.0f ? 1.0f : s);
}

// Block scale from a calibrated or searched maximum. A zero block stores m*6/g clamped to E4M3, usually 448 (0x7E).
NIBBLE_HD constexpr uint8_t nvfp4_static_scale(float block_amax, float g, float m, Arithmetic arithmetic) {
    float s = div_const(block_amax, e2m1_max, arithmetic);
    if (s == 0.0f) s = 1.0f;
    const float gs = div_const(g, e2m1_max, arithmetic);
    return nvfp4_store_scale(gs > 0.0f ? s * m / gs : e4m3_max);
}

// The factor that multiplies a code.
NIBBLE_HD constexpr float nvfp4_decode_scale(uint8_t scale, float tensor_scale) {
    return e4m3_to_float(scale) * tensor_scale;
}

NIBBLE_HD constexpr uint8_t nvfp4_code(float w, float decode_scale) { return e2m1_from_float(w / decode_scale); }

// ---- Fake quantization: the rounding inside scale searches --------------------------------------------------------

// Fake quantization sends a block scale through FP8 and back. Unlike E4M3 export it applies FP32 factors on both sides
// and has no minimum of 2^-9, so tiny blocks become zero. nvfp4_fake_block_scale() returns the factor of the codes.
//   A = g * (448/m) / 6;  k = 448 / A, which PyTorch evaluates as reciprocal(A) * 448
struct FakeScale {
    float up, down;  // k and 1/k
};

NIBBLE_HD constexpr FakeScale nvfp4_fake_scale(float g, float m, Arithmetic arithmetic) {
    const float a = div_const(g * (e4m3_max / m), e2m1_max, arithmetic);
    const float k = a > 0.0f ? (1.0f / a) * e4m3_max : 1.0f;
    return {k, 1.0f / k};
}

NIBBLE_HD constexpr float nvfp4_fake_block_scale(float block_amax, FakeScale fake, Arithmetic arithmetic) {
    const float s = div_const(block_amax, e2m1_max, arithmetic) * fake.up;
    return e4m3_to_float(e4m3_from_float_saturating(s)) * fake.down;
}

// w after quantization with a fake block scale; a zero scale gives zero.
NIBBLE_HD constexpr float nvfp4_fake_value(float w, float scale) {
    if (scale == 0.0f) return 0.0f;
    const float y = e2m1_to_float(e2m1_magnitude(magnitude(w) / scale)) * scale;
    return w < 0.0f ? -y : y;
}

// Dynamic block scales in fake quantization, normalised by the tensor maximum g (Model Optimizer's Triton kernel).
// There is no minimum of 2^-9. A product of scales below 1e-5 becomes 1, which flushes the block to zero.
NIBBLE_HD constexpr float nvfp4_fake_group_scale(float g, Arithmetic arithmetic) {
    const float gs = div_const(g, e2m1_max * e4m3_max, arithmetic);
    return gs > 0.0f ? gs : 1e-12f;
}

NIBBLE_HD constexpr float nvfp4_fake_dynamic_scale(float block_amax, float g, Arithmetic arithmetic) {
    const float gs = nvfp4_fake_group_scale(g, arithmetic);
    const float scale = e4m3_to_float(e4m3_from_float_saturating(block_amax / (e2m1_max * gs))) * gs;
    return scale < 1e-5f ? 1.0f : scale;
}

// Sums the squared errors of a block of 16 in nibble's fixed order, a halving tree: i with i+8, then i+4, i+2, i+1. One
// 16-lane register, two 8-lane registers and this loop give the same bits.
NIBBLE_HD constexpr float sum16(const float (&squares)[16]) {
    float t[8] = {};
    for (int i = 0; i < 8; ++i) t[i] = squares[i] + squares[i + 8];
    for (int i = 0; i < 4; ++i) t[i] = t[i] + t[i + 4];
    for (int i = 0; i < 2; ++i) t[i] = t[i] + t[i + 2];
    return t[0] + t[1];
}

NIBBLE_HD constexpr float nvfp4_fake_loss(const float (&w)[16], float scale) {
    float squares[16] = {};
    for (int i = 0; i < 16; ++i) {
        const float e = w[i] - nvfp4_fake_value(w[i], scale);
        squares[i] = e * e;
    }
    return sum16(squares);
}

// The 126-candidate sweep tries every finite positive E4M3 value v as the block scale. A candidate's block maximum is g
// * (v/448), its scale (g * (v/448)) / 6. Model Optimizer's CUDA kernel uses that scale directly (reciprocal profile);
// its CPU loop first sends it through FP8 and back as above (true division).
NIBBLE_HD constexpr float nvfp4_sweep_amax(uint8_t candidate, float g, Arithmetic arithmetic) {
    return g * div_const(e4m3_to_float(candidate), e4m3_max, arithmetic);
}

NIBBLE_HD constexpr float nvfp4_sweep_scale(uint8_t candidate, float g, FakeScale fake, Arithmetic arithmetic) {
    const float amax = nvfp4_sweep_amax(candidate, g, arithmetic);
    return arithmetic == Arithmetic::reciprocal ? div_const(amax, e2m1_max, arithmetic)
                                                : nvfp4_fake_block_scale(amax, fake, arithmetic);
}

}  // namespace nibble
