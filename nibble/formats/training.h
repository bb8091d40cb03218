// How training rounds the operands of its products, one number at a time. The formulas are those of TransformerEngine
// 2.20 in its FP32 order, and those of MS-EDEN. A matrix is quantized along the reduction dimension of its product.
// `outer` is an index along the other dimension, `group` an index of blocks of 16 along the reduction.
// docs/topics/training.md has the table of recipes.
#pragma once

#include "base/philox.h"
#include "formats/e2m1_values.h"
#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/stochastic.h"

#include <cfloat>

namespace nibble {

enum class CastFormat : uint8_t {
    bf16,
    fp8,         // E4M3, one scale per tensor: 448 / amax
    fp8_e5m2,    // E5M2, one scale per tensor: 57344 / amax
    fp8_block,   // E4M3, scales amax / 448 per 1 x 128, weights per 128 x 128 (DeepSeek-V3)
    fp8_block2,  // like fp8_block, with 448 / amax rounded down to a power of two (TransformerEngine's default)
    mxfp8,       // E4M3, E8M0 scale per 1 x 32, rounded up
    nvfp4,       // E2M1, E4M3 scale per 1 x 16 or 16 x 16, FP32 scale per tensor
};

struct CastRule {
    CastFormat format = CastFormat::bf16;
    bool rotate = false;  // applies a 16-point Hadamard transform along the reduction first (TransformerEngine's signs)
    bool stochastic = false;  // rounds E2M1 codes stochastically
    bool square = false;      // one scale per 16 x 16 (weights)
    bool four_over_six = false;
    bool row_scaled = false;  // each row has its own "tensor" scale
    bool stored = false;      // nvfp4: rounds inputs like the engine, under an `input_scale` stored in the checkpoint
};

// Random bits for one quantized copy. Block `g` of the Philox generator has eight bits for each of 16 neighbours along
// the reduction: g = (first_outer + outer) * outer_step + (first_group + group) * group_step. For a row copy of [R, C],
// g = r * (C / 16) + c / 16; for a column copy, g = (r / 16) * C + c. r counts all rows of the step.
struct CastRandom {
    uint32_t id = 0;    // 8 * unit + role
    uint64_t draw = 0;  // seed * 2^20 + step
    uint64_t first_outer = 0, first_group = 0, outer_step = 1, group_step = 1;

    NIBBLE_HD constexpr PhiloxBlock block(uint64_t outer, uint64_t group) const {
        const uint64_t g = (first_outer + outer) * outer_step + (first_group + group) * group_step;
        return philox4x32(
            {{static_cast<uint32_t>(g), static_cast<uint32_t>(g >> 32), static_cast<uint32_t>(draw >> 32), 0}}, id,
            static_cast<uint32_t>(draw));
    }
};

inline constexpr int nv_group = 16, mx_group = 32, fp8_group = 128, eden_group = 128;
inline constexpr uint32_t rotation_signs = 0xD7E8;

// Rounds the length of the reduction up to whole blocks.
NIBBLE_HD constexpr int64_t cast_padded(int64_t length, const CastRule& rule) {
    const int64_t block = rule.rotate || rule.format == CastFormat::nvfp4                                 ? nv_group
                          : rule.format == CastFormat::mxfp8                                              ? mx_group
                          : rule.format == CastFormat::fp8_block || rule.format == CastFormat::fp8_block2 ? fp8_group
                                                                                                          : 1;
    return (length + block - 1) / block * block;
}

NIBBLE_HD constexpr float at_most(float x, float most) { return most < x ? most : x; }  // NaN stays NaN

// ---- NVFP4 ---------------------------------------------------------------------------------------------------------

struct NvScale {  // Scales of a tensor with largest magnitude t; `largest` is 6 * 448 or 6 * 256
    float encode, decode;
};
NIBBLE_HD constexpr float nv_largest(const CastRule& rule) { return rule.four_over_six ? 6 * 256.0f : 6 * 448.0f; }
NIBBLE_HD constexpr NvScale nv_tensor_scale(float t, float largest) {
    float encode = t == 0 ? 1.0f : at_most(largest / t, FLT_MAX);
    if (encode == 0) encode = 1;
    return {encode, 1 / encode};
}
// nv_block_scale(): the stored byte for a block with largest magnitude b. nv_element_scale(): the factor of its
// elements before rounding.
NIBBLE_HD constexpr uint8_t nv_block_scale(float b, NvScale tensor) {
    const float m = tensor.encode * (1.0f / 6.0f);
    return e4m3_from_float_saturating(at_most(b * m, FLT_MAX));
}
NIBBLE_HD constexpr float nv_element_scale(uint8_t block, NvScale tensor) {
    const float divisor = e4m3_to_float(block) * tensor.decode;
    return divisor == 0 ? FLT_MAX : at_most(1 / divisor, FLT_MAX);
}
// A candidate of four-over-six: fl(fl(b / 6) * encode) * factor, at most 448.
NIBBLE_HD constexpr uint8_t nv_factor_scale(float b, float factor, NvScale tensor) {
    const float base = b / 6.0f * tensor.encode;
    return e4m3_from_float_saturating(at_most(base * factor, e4m3_max));
}

// Rounds x to E2M1: truncates |x| + byte / 256 of a step, so |x| rounds up with probability floor(256 f) / 256, where f
// is its position between neighbours. Saturates at 6. Returns the code with its sign.
NIBBLE_HD constexpr uint8_t e2m1_stochastic_byte(float x, uint8_t byte) {
    const float a = magnitude(x);
    const uint8_t sign = float_bits(x) >> 31 ? 8 : 0;
    if (!(a < 6.0f)) return static_cast<uint8_t>(7 | (a == a ? sign : 0));
    const float step = a < 2 ? 0.5f : a < 4 ? 1.0f : 2.0f;
    const float t = static_cast<float>(byte) * 0x1p-8f * step + a;  // the product is exact
    const int code = (t >= 0.5f) + (t >= 1.0f) + (t >= 1.5f) + (t >= 2.0f) + (t >= 3.0f) + (t >= 4.0f) + (t >= 6.0f);
    return static_cast<uint8_t>(code | sign);
}

// Squared error of a block under a scale, summed in element order.
NIBBLE_HD inline float nv_block_error(const float* x, uint8_t scale, NvScale tensor) {
    const float e = nv_element_scale(scale, tensor), s = e4m3_to_float(scale);
    float sum = 0;
    for (int i = 0; i < nv_group; ++i) {
        const float d = e2m1_value(x[i] * e) * s * tensor.decode - x[i];
        sum += d * d;
    }
    return sum;
}
// Chooses the scale of 16 neighbours with largest magnitude b.
NIBBLE_HD inline uint8_t nv_choose_scale(const float* x, float b, const CastRule& rule, NvScale tensor) {
    if (!rule.four_over_six) return nv_block_scale(b, tensor);
    const uint8_t six = nv_factor_scale(b, 1.0f, tensor), four = nv_factor_scale(b, 1.5f, tensor);
    return nv_block_error(x, four, tensor) < nv_block_error(x, six, tensor) ? four : six;
}

// ---- FP8 and MXFP8 -------------------------------------------------------------------------------------------------

// Returns largest / amax (`largest` is 448 or 57344), or 1 if amax is 0 or not finite.
NIBBLE_HD constexpr float fp8_current_scale(float amax, float largest) {
    if (!(amax > 0) || !is_finite(amax)) return 1;
    const float scale = largest / amax;
    return is_finite(scale) ? scale : bf16_to_float(0x7F7F);  // the largest finite BF16
}
NIBBLE_HD constexpr float fp8_power_of_two(float scale) {  // rounded down
    return float_from_bits(float_bits(scale) & 0xFF800000u);
}
NIBBLE_HD constexpr float e4m3_rounded(float x) { return e4m3_to_float(e4m3_from_float_saturating(x)); }
NIBBLE_HD constexpr float e5m2_rounded(float x) {
    return e5m2_to_float(e5m2_from_float(x < -e5m2_max ? -e5m2_max : e5m2_max < x ? e5m2_max : x));
}

// The scale of a block of 128 or a tile of 128 x 128. The code is E4M3 of x * up if scales are powers of two, else of x
// / down. Weights (`square`) round like `nibble quantize`, inputs like the engine.
struct BlockScale {
    float down, up;  // up 0: divide
    NIBBLE_HD constexpr uint8_t code(float x) const { return e4m3_from_float_saturating(up > 0 ? x * up : x / down); }
};
NIBBLE_HD constexpr BlockScale fp8_block_scale(float amax, const CastRule& rule) {
    if (rule.format == CastFormat::fp8_block2) {
        const float up = fp8_power_of_two(fp8_current_scale(amax, e4m3_max));
        return {1 / up, up};
    }
    return {fp8_scale(amax, rule.square ? Arithmetic::reciprocal : Arithmetic::true_division), 0};
}

// Returns the E8M0 byte of amax / 448, rounded up.
NIBBLE_HD constexpr uint8_t mx_scale_up(float amax) {
    const float r = amax * (1.0f / 448.0f);
    const uint32_t bits = float_bits(r), exponent = bits >> 23, mantissa = bits & 0x7FFFFFu;
    if (is_nan_bits(bits)) return 255;
    if (exponent == 255) return 254;
    if (bits == 0) return 0;
    if (exponent == 0) return mantissa <= 0x400000u ? 0 : 1;
    return static_cast<uint8_t>(mantissa && exponent < 254 ? exponent + 1 : exponent);
}

// ---- MS-EDEN -------------------------------------------------------------------------------------------------------

inline constexpr float eden_head_room = 6.0f / (17.0f / 16.0f * 0.93f);  // c

// The unnormalised 128-point Hadamard transform, in place. Elements are `apart` floats from each other.
NIBBLE_HD constexpr void hadamard128(float* z, int apart = 1) {
    for (int distance = 1; distance < eden_group; distance *= 2)
        for (int i = 0; i < eden_group; ++i)
            if ((i & distance) == 0) {
                const float a = z[i * apart], b = z[(i + distance) * apart];
                z[i * apart] = a + b;
                z[(i + distance) * apart] = a - b;
            }
}
NIBBLE_HD constexpr float eden_rotated(float sum) { return round_to_bf16(sum * 0.0883883461f); }

// Returns d for a matrix whose rotated numbers have the largest magnitude t.
NIBBLE_HD constexpr float eden_scale(float t) {
    const float d = t * (1.0f / (255.99f * eden_head_room));
    return d > 0 ? d : 1;
}

// Spacing of E4M3 numbers at v > 0.
NIBBLE_HD constexpr float e4m3_spacing(float v) {
    const int exponent = static_cast<int>(float_bits(v) >> 23) - 127;
    return float_from_bits(static_cast<uint32_t>((exponent < -6 ? -6 : exponent) - 3 + 127) << 23);
}

// The scale of a block of rotated numbers with largest magnitude b, before the gain correction.
NIBBLE_HD constexpr float eden_block_scale(float b, float d) {
    const float s = e4m3_to_float(e4m3_from_float_saturating(b / eden_head_room / d));
    return s == 0 ? 1 : s;
}
// Rounds `wanted`, the block scale times the gain, to E4M3 stochastically.
NIBBLE_HD constexpr float eden_corrected_scale(float wanted, uint32_t random) {
    const float step = e4m3_spacing(wanted), u = static_cast<float>(random >> 8) * 0x1p-24f;
    const float steps = wanted / step + u;
    // Below 2^24 the conversion rounds down; beyond, the sum is whole.
    const float whole = steps < 0x1p24f ? static_cast<float>(static_cast<int32_t>(steps)) : steps;
    return at_most(step * whole, e4m3_max);
}

// Encodes one group of 128 rotated numbers, `apart` floats from each other, in place: each becomes value(code) *
// corrected block scale. The product's sum must then be multiplied by d.
NIBBLE_HD constexpr void eden_encode(float* z, int apart, float d, const CastRandom& random, uint64_t outer,
                                     uint64_t group) {
    constexpr int blocks = eden_group / nv_group;
    float scales[blocks] = {};
    float squares = 0, dot = 0;
    for (int b = 0; b < blocks; ++b) {
        float most = 0;
        for (int i = 0; i < nv_group; ++i) {
            const float m = magnitude(z[(b * nv_group + i) * apart]);
            most = most < m ? m : most;
        }
        const float s = eden_block_scale(most, d);
        scales[b] = s;
        for (int i = b * nv_group; i < (b + 1) * nv_group; ++i) {
            const float x = z[i * apart], code = e2m1_to_float(e2m1_from_float(x / (s * d)));
            squares += x * x;
            dot += x * (code * s * d);
            z[i * apart] = code;
        }
    }
    const float gain = dot > 0 ? squares / dot : 1;
    for (int b = 0; b < blocks; ++b) {
        const uint32_t bits = random.block(outer, group * blocks + static_cast<uint64_t>(b)).word[0];
        const float s = eden_corrected_scale(scales[b] * gain, bits);
        for (int i = b * nv_group; i < (b + 1) * nv_group; ++i) z[i * apart] = z[i * apart] * s;
    }
}

}  // namespace nibble
