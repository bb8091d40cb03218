#include "cli/formats_text.h"

#include "cli/formats_block.h"
#include "formats/format.h"
#include "formats/minifloat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace nibble {
namespace {

// Encodes and decodes a small float without special values, saturating (MX FP6); NaN becomes the largest, as hardware
// casts have it.
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

// TF32: FP32 whose last 13 bits are rounded away; the code is what stays.
uint32_t tf32_encode(float x) {
    const uint32_t bits = float_bits(x);
    if (is_nan_bits(bits)) return (bits | 0x400000u) >> 13;
    return (bits + 0xFFFu + (bits >> 13 & 1u)) >> 13;
}

struct Element {
    std::string_view name;
    int exponent_bits, mantissa_bits, sign_bits;
    uint32_t (*encode)(float);
    float (*decode)(uint32_t);
    std::string_view note;
    std::string_view special;  // overflow and NaN

    int bits() const { return sign_bits + exponent_bits + mantissa_bits; }
    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};

constexpr std::array elements{
    Element{"e2m1", 2, 1, 1, [](float x) -> uint32_t { return e2m1_from_float(x); },
            [](uint32_t c) { return e2m1_to_float(uint8_t(c)); }, "the 4-bit float of NVFP4 and MXFP4; saturates at 6",
            "no infinity and no NaN: everything beyond 6 becomes 6, and so does NaN"},
    Element{"e2m3", 2, 3, 1, Fp6<2, 3>::encode, Fp6<2, 3>::decode,
            "MX FP6 with a fine grid; largest 7.5 (nibble stores no FP6)",
            "no infinity and no NaN: everything beyond 7.5 becomes 7.5"},
    Element{"e3m2", 3, 2, 1, Fp6<3, 2>::encode, Fp6<3, 2>::decode,
            "MX FP6 with a wide range; largest 28 (nibble stores no FP6)",
            "no infinity and no NaN: everything beyond 28 becomes 28"},
    Element{"e4m3", 4, 3, 1, [](float x) -> uint32_t { return e4m3_from_float(x); },
            [](uint32_t c) { return e4m3_to_float(uint8_t(c)); },
            "FP8 weights, NVFP4 block scales; largest 448, no infinity",
            "converting: up to 464 becomes 448, beyond, infinity and NaN are NaN (0x7F), as PyTorch casts; quantizing: "
            "everything beyond 448 becomes 448"},
    Element{"e5m2", 5, 2, 1, [](float x) -> uint32_t { return e5m2_from_float(x); },
            [](uint32_t c) { return e5m2_to_float(uint8_t(c)); }, "FP8 gradients; IEEE infinity and NaN, largest 57344",
            "from 61440 on infinity (0x7C); NaN stays NaN"},
    Element{"e8m0", 8, 0, 0, [](float x) -> uint32_t { return e8m0_from_float(x); },
            [](uint32_t c) { return e8m0_to_float(uint8_t(c)); }, "MX block scales: 2^(code - 127), 255 is NaN",
            "zero, negative numbers, infinity and NaN are NaN (255)"},
    Element{"fp16", 5, 10, 1, [](float x) -> uint32_t { return fp16_from_float(x); },
            [](uint32_t c) { return fp16_to_float(uint16_t(c)); }, "IEEE half; largest 65504",
            "from 65520 on infinity; NaN stays NaN"},
    Element{"bf16", 8, 7, 1, [](float x) -> uint32_t { return bf16_from_float(x); },
            [](uint32_t c) { return bf16_to_float(uint16_t(c)); }, "the upper half of FP32",
            "beyond 3.39e38 infinity; NaN stays NaN"},
    Element{"tf32", 8, 10, 1, tf32_encode, [](uint32_t c) { return float_from_bits(c << 13); },
            "what tensor cores read of FP32: 19 bits in a word of 32", "as FP32"},
    Element{"fp32", 8, 23, 1, [](float x) -> uint32_t { return float_bits(x); },
            [](uint32_t c) { return float_from_bits(c); }, "IEEE single", "IEEE infinity and NaN"},
};

const Element* find_element(std::string_view name) {
    for (const Element& e : elements)
        if (e.name == name) return &e;
    return nullptr;
}

// "1 01 1": sign, exponent, mantissa.
std::string bit_fields(const Element& e, uint32_t code) {
    std::string text;
    for (int b = e.bits() - 1; b >= 0; --b) {
        text += (code >> b & 1) ? '1' : '0';
        if (b == e.bits() - e.sign_bits && e.sign_bits) text += ' ';
        if (b == e.mantissa_bits && e.mantissa_bits) text += ' ';
    }
    return text;
}

std::string number_line(const Element& e, float x) {
    const uint32_t code = e.encode(x);
    const float y = e.decode(code);
    const double error = double(y) - double(x);
    std::string relative =
        x != 0 && std::isfinite(error) ? fmt::format("{:+.3g} %", 100 * error / std::fabs(double(x))) : "-";
    return fmt::format("  {:<5} {:<35} 0x{:0{}X}{:{}} {:>14.8g} {:>13} {:>12}\n", e.name, bit_fields(e, code), code,
                       (e.bits() + 3) / 4, "", 8 - (e.bits() + 3) / 4, y,
                       std::isfinite(error) ? fmt::format("{:+.4g}", error) : "-", relative);
}

std::string number_header(float x) {
    return fmt::format("{:.9g}\n  {:<5} {:<35} {:<10} {:>14} {:>13} {:>12}\n", x, "type", "sign exponent mantissa",
                       "code", "value", "error", "relative");
}

// What the bits mean.
std::string formula(const Element& e) {
    if (e.mantissa_bits == 0) return fmt::format("  value          2^(e - {})\n", e.bias());
    const uint32_t divisor = 1u << e.mantissa_bits;
    return fmt::format(
        "  normal         (-1)^s * 2^(e - {0}) * (1 + m/{1}), e > 0\n"
        "  subnormal      (-1)^s * 2^{2} * m/{1}, e = 0; the smallest step is {3:.4g}\n",
        e.bias(), divisor, 1 - e.bias(), std::ldexp(1.0, 1 - e.bias() - e.mantissa_bits));
}

std::string element_text(const Element& e) {
    std::string text =
        fmt::format("{}: {} sign, {} exponent, {} mantissa bits, bias {}. {}.\n\n{}  overflow, NaN  {}\n\n", e.name,
                    e.sign_bits, e.exponent_bits, e.mantissa_bits, e.bias(), e.note, formula(e), e.special);
    if (e.bits() > 8)
        return text + "Too many values for a table; try `nibble formats " + std::string(e.name) + " 0.1`.\n";
    const uint32_t codes = 1u << (e.bits() - e.sign_bits);
    text += e.sign_bits
                ? fmt::format("Codes 0x00 .. 0x{:02X}; the upper half is the same with the sign set.\n", codes - 1)
                : "";
    const uint32_t columns = codes > 16 ? 8 : 4;
    for (uint32_t c = 0; c < codes; ++c)
        text += fmt::format("  {:02X} {:<13}{}", c, fmt::format("{:.6g}", e.decode(c)), (c + 1) % columns ? "" : "\n");
    return text;
}

struct BlockInfo {
    Format format;
    std::string_view rule;
};

constexpr std::array block_formats{
    BlockInfo{Format::nvfp4,
              "value = e2m1 * (e4m3 block scale * FP32 tensor scale); tensor scale = amax/2688, block scale = block "
              "amax/(6 tensor scale)"},
    BlockInfo{Format::nvfp4_bs32, "as nvfp4 with blocks of 32"},
    BlockInfo{Format::mxfp4,
              "value = e2m1 * 2^(e8m0 - 127); smallest exponent with block amax <= 6 * 2^e, ties toward zero"},
    BlockInfo{Format::mxfp8, "value = e4m3 * 2^(e8m0 - 127); smallest exponent with block amax <= 448 * 2^e"},
    BlockInfo{Format::fp8, "value = e4m3 * FP32 tensor scale; scale = amax/448; the quotient is rounded to BF16 first"},
    BlockInfo{Format::fp8_row, "value = e4m3 * FP32 row scale; scale = row amax/448"},
    BlockInfo{Format::fp8_block128, "value = e4m3 * FP32 tile scale; scale = 128x128 tile amax/448"},
};

}  // namespace

bool is_format_name(std::string_view name) {
    const auto format = format_from_name(name);
    return find_element(name) || (format && *format != Format::none);
}

std::string format_choices() {
    std::string text;
    for (const Element& e : elements) text += fmt::format("{} ", e.name);
    for (const BlockInfo& b : block_formats) text += fmt::format("{} ", format_name(b.format));
    text.pop_back();
    return text;
}

std::string overview_text() {
    std::string text = "Element formats\n";
    for (const Element& e : elements)
        text += fmt::format("  {:<13} {:>2} bits  S{} E{} M{:<3} bias {:<4} {}\n", e.name, e.bits(), e.sign_bits,
                            e.exponent_bits, e.mantissa_bits, e.bias(), e.note);
    text += "\nBlock formats (bits per weight of a 4096 x 4096 matrix, scales included)\n";
    for (const BlockInfo& b : block_formats)
        text += fmt::format("  {:<13} {:>6.3f}   {}\n", format_name(b.format), bits_per_element(b.format, 4096, 4096),
                            b.rule);
    text +=
        "\nQuantizing never meets overflow or NaN by itself: weights that are not finite are refused, and scales are "
        "made of "
        "maxima, so that quotients end at the largest element but for rounding, where they saturate. A scale that a "
        "search "
        "chose below the maximum saturates on purpose.\n";
    return text + "\nTry: nibble formats e4m3 | nibble formats 0.1 -3 | nibble formats nvfp4 0.1 -3 0.02 --amax 8\n";
}

Result<std::string> format_text(std::string_view name) {
    if (const Element* e = find_element(name)) return element_text(*e);
    for (const BlockInfo& b : block_formats)
        if (format_name(b.format) == name)
            return fmt::format("{}: {:.3f} bits per weight\n  {}\n\nTry: nibble formats {} 0.1 -3 0.02 1.5\n", name,
                               bits_per_element(b.format, 4096, 4096), b.rule, name);
    return fail("unknown format '{}'; formats: {}", name, format_choices());
}

std::string numbers_text(std::span<const float> numbers) {
    std::string text;
    for (float x : numbers) {
        text += number_header(x);
        for (const Element& e : elements) text += number_line(e, x);
        text += '\n';
    }
    return text;
}

Result<std::string> quantized_text(std::string_view name, std::span<const float> numbers, Arithmetic arithmetic,
                                   std::optional<float> amax) {
    if (const Element* e = find_element(name)) {
        if (amax) return fail("--amax: {} is no format with a tensor scale", name);
        std::string text;
        for (float x : numbers) text += number_header(x) + number_line(*e, x);
        return text;
    }
    return block_text(*format_from_name(name), numbers, arithmetic, amax);
}

}  // namespace nibble
