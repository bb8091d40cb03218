#include "jobs/formats_elements.h"

#include "formats/minifloat.h"

#include <algorithm>
#include <array>

namespace nibble {
namespace {

// Encodes and decodes a small float without special values (MX FP6), saturating; NaN becomes the largest value, as in
// hardware casts.
template <int ExponentBits, int MantissaBits>
struct Fp6 {
    using F = MiniFloat<ExponentBits, MantissaBits>;
    static constexpr uint32_t largest = 0x1F;
    static uint32_t encode(float x) {
        const uint32_t sign = float_bits(x) >> 31 << 5;
        const float a = magnitude(x);
        if (!(a < F::magnitude_value(largest))) return sign | largest;
        return sign | std::min(F::round_magnitude(float_bits(a)), largest);
    }
    static float decode(uint32_t code) {
        const float value = F::magnitude_value(code & 0x1F);
        return code & 0x20 ? -value : value;
    }
};

// TF32: FP32 without its last 13 bits, rounded; the code is the remaining bits.
uint32_t tf32_encode(float x) {
    const uint32_t bits = float_bits(x);
    if (is_nan_bits(bits)) return (bits | 0x400000u) >> 13;
    return (bits + 0xFFFu + (bits >> 13 & 1u)) >> 13;
}

constexpr std::array all_elements{
    ElementFormat{"e2m1", 2, 1, 1, [](float x) -> uint32_t { return e2m1_from_float(x); },
                  [](uint32_t c) { return e2m1_to_float(uint8_t(c)); },
                  "the 4-bit float of NVFP4 and MXFP4; saturates at 6",
                  "no infinity and no NaN: everything beyond 6 becomes 6, and so does NaN"},
    ElementFormat{"e2m3", 2, 3, 1, Fp6<2, 3>::encode, Fp6<2, 3>::decode,
                  "MX FP6 with a fine grid; largest 7.5 (nibble stores no FP6)",
                  "no infinity and no NaN: everything beyond 7.5 becomes 7.5"},
    ElementFormat{"e3m2", 3, 2, 1, Fp6<3, 2>::encode, Fp6<3, 2>::decode,
                  "MX FP6 with a wide range; largest 28 (nibble stores no FP6)",
                  "no infinity and no NaN: everything beyond 28 becomes 28"},
    ElementFormat{
        "e4m3", 4, 3, 1, [](float x) -> uint32_t { return e4m3_from_float(x); },
        [](uint32_t c) { return e4m3_to_float(uint8_t(c)); },
        "FP8 weights, NVFP4 block scales; largest 448, no infinity",
        "converting: up to 464 becomes 448, beyond, infinity and NaN are NaN (0x7F), as PyTorch casts; quantizing: "
        "everything beyond 448 becomes 448"},
    ElementFormat{"e5m2", 5, 2, 1, [](float x) -> uint32_t { return e5m2_from_float(x); },
                  [](uint32_t c) { return e5m2_to_float(uint8_t(c)); },
                  "FP8 gradients; IEEE infinity and NaN, largest 57344",
                  "from 61440 on infinity (0x7C); NaN stays NaN"},
    ElementFormat{"e8m0", 8, 0, 0, [](float x) -> uint32_t { return e8m0_from_float(x); },
                  [](uint32_t c) { return e8m0_to_float(uint8_t(c)); }, "MX block scales: 2^(code - 127), 255 is NaN",
                  "zero, negative numbers, infinity and NaN are NaN (255)"},
    ElementFormat{"fp16", 5, 10, 1, [](float x) -> uint32_t { return fp16_from_float(x); },
                  [](uint32_t c) { return fp16_to_float(uint16_t(c)); }, "IEEE half; largest 65504",
                  "from 65520 on infinity; NaN stays NaN"},
    ElementFormat{"bf16", 8, 7, 1, [](float x) -> uint32_t { return bf16_from_float(x); },
                  [](uint32_t c) { return bf16_to_float(uint16_t(c)); }, "the upper half of FP32",
                  "beyond 3.39e38 infinity; NaN stays NaN"},
    ElementFormat{"tf32", 8, 10, 1, tf32_encode, [](uint32_t c) { return float_from_bits(c << 13); },
                  "the 19 bits of an FP32 value that tensor cores use", "as FP32"},
    ElementFormat{"fp32", 8, 23, 1, [](float x) -> uint32_t { return float_bits(x); },
                  [](uint32_t c) { return float_from_bits(c); }, "IEEE single", "IEEE infinity and NaN"},
};

constexpr std::array all_blocks{
    BlockFormat{Format::nvfp4,
                "value = e2m1 * (e4m3 block scale * FP32 tensor scale); tensor scale = amax/2688, block scale = block "
                "amax/(6 tensor scale)"},
    BlockFormat{Format::nvfp4_bs32, "as nvfp4 with blocks of 32"},
    BlockFormat{Format::mxfp4,
                "value = e2m1 * 2^(e8m0 - 127); smallest exponent with block amax <= 6 * 2^e, ties toward zero"},
    BlockFormat{Format::mxfp8, "value = e4m3 * 2^(e8m0 - 127); smallest exponent with block amax <= 448 * 2^e"},
    BlockFormat{Format::fp8,
                "value = e4m3 * FP32 tensor scale; scale = amax/448; the quotient is rounded to BF16 first"},
    BlockFormat{Format::fp8_row, "value = e4m3 * FP32 row scale; scale = row amax/448"},
    BlockFormat{Format::fp8_block128, "value = e4m3 * FP32 tile scale; scale = 128x128 tile amax/448"},
    BlockFormat{Format::int4, "value = (code - 8) * BF16 group scale; scale = amax/7.5 of 128 inputs"},
};

}  // namespace

std::span<const ElementFormat> element_formats() { return all_elements; }

const ElementFormat* find_element(std::string_view name) {
    for (const ElementFormat& e : all_elements)
        if (e.name == name) return &e;
    return nullptr;
}

std::span<const BlockFormat> block_formats() { return all_blocks; }

}  // namespace nibble
