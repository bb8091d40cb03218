// NVFP4: blocks of 16 E2M1 codes along the input dimension, one E4M3 scale per block, one FP32 scale per tensor.
//
//   value = e2m1(code) * (e4m3(block scale) * tensor scale)          the product of scales is formed first, in FP32
//
// The rules below are those of Model Optimizer's export (docs/formats.md; NVIDIA TensorRT Model Optimizer 0.47).
// g: the largest |w| of the tensor (of the fusion group, when partners share it). m: 448, or 256 when blocks may be
// scaled up by 1.5 (four-over-six), so that the largest block still fits E4M3.
#pragma once

#include "formats/arithmetic.h"
#include "formats/minifloat.h"

namespace nibble {

inline constexpr int nvfp4_block = 16;

// weight_scale_2. An all-zero tensor has no scale of its own: 1.
NIBBLE_HD constexpr float nvfp4_tensor_scale(float g, float m, Arithmetic arithmetic) {
    const float s = div_const(g, e2m1_max * m, arithmetic);
    return s > 0.0f ? s : 1.0f;
}

// Largest to smallest block scale that export may store: E4M3 without its zero.
NIBBLE_HD constexpr uint8_t nvfp4_store_scale(float s) {
    constexpr float smallest = 0.001953125f;  // 2^-9
    return e4m3_from_float(s < smallest ? smallest : s > e4m3_max ? e4m3_max : s);
}

// Dynamic block scale: straight from the block's own maximum. A zero block stores 1.0 (0x38).
NIBBLE_HD constexpr uint8_t nvfp4_dynamic_scale(float block_amax, float tensor_scale) {
    const float s = block_amax / (e2m1_max * tensor_scale);
    return nvfp4_store_scale(s == 0.0f ? 1.0f : s);
}

// Static block scale: from a calibrated or searched block maximum. A zero block stores m*6/g, 448 as a rule (0x7E).
NIBBLE_HD constexpr uint8_t nvfp4_static_scale(float block_amax, float g, float m, Arithmetic arithmetic) {
    float s = div_const(block_amax, e2m1_max, arithmetic);
    if (s == 0.0f) s = 1.0f;
    const float gs = div_const(g, e2m1_max, arithmetic);
    return nvfp4_store_scale(gs > 0.0f ? s * m / gs : e4m3_max);
}

// What a code is multiplied with.
NIBBLE_HD constexpr float nvfp4_decode_scale(uint8_t scale, float tensor_scale) {
    return e4m3_to_float(scale) * tensor_scale;
}

NIBBLE_HD constexpr uint8_t nvfp4_code(float w, float decode_scale) { return e2m1_from_float(w / decode_scale); }

// ---- Fake quantization: the rounding inside scale searches --------------------------------------------------------

// The FP8 round trip of a block scale as fake quantization does it: like E4M3 export, but with FP32 factors on both
// sides and without the floor at 2^-9 (tiny blocks become zero). Returns the factor of the codes.
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

// Dynamic block scales inside fake quantization, normalised by the tensor maximum g (Model Optimizer's Triton kernel):
// no floor at 2^-9, and a product of scales below 1e-5 becomes 1, which flushes the block to zero.
NIBBLE_HD constexpr float nvfp4_fake_group_scale(float g, Arithmetic arithmetic) {
    const float gs = div_const(g, e2m1_max * e4m3_max, arithmetic);
    return gs > 0.0f ? gs : 1e-12f;
}

NIBBLE_HD constexpr float nvfp4_fake_dynamic_scale(float block_amax, float g, Arithmetic arithmetic) {
    const float gs = nvfp4_fake_group_scale(g, arithmetic);
    const float scale = e4m3_to_float(e4m3_from_float_saturating(block_amax / (e2m1_max * gs))) * gs;
    return scale < 1e-5f ? 1.0f : scale;
}

// The error of one block of 16 in the project's fixed order: squares rounded, then a halving tree (i with i+8, i+4
// ...), so that one 16-lane register, two 8-lane ones and this loop give the same bits.
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

// The 126-candidate sweep tries every finite positive E4M3 value v as block scale. The block maximum of a candidate is
// g * (v/448), its scale (g * (v/448)) / 6. Model Optimizer's CUDA kernel uses that scale as it is (reciprocal
// profile); its CPU loop sends it through the FP8 round trip above (true division).
NIBBLE_HD constexpr float nvfp4_sweep_amax(uint8_t candidate, float g, Arithmetic arithmetic) {
    return g * div_const(e4m3_to_float(candidate), e4m3_max, arithmetic);
}

NIBBLE_HD constexpr float nvfp4_sweep_scale(uint8_t candidate, float g, FakeScale fake, Arithmetic arithmetic) {
    const float amax = nvfp4_sweep_amax(candidate, g, arithmetic);
    return arithmetic == Arithmetic::reciprocal ? div_const(amax, e2m1_max, arithmetic)
                                                : nvfp4_fake_block_scale(amax, fake, arithmetic);
}

}  // namespace nibble
