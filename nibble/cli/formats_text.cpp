#include "cli/formats_text.h"

#include "formats/format.h"
#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace nibble {
namespace {

struct Element {
    std::string_view name;
    int exponent_bits, mantissa_bits, sign_bits;
    uint32_t (*encode)(float);
    float (*decode)(uint32_t);
    std::string_view note;

    int bits() const { return sign_bits + exponent_bits + mantissa_bits; }
};

constexpr std::array elements{
    Element{"e2m1", 2, 1, 1, [](float x) -> uint32_t { return e2m1_from_float(x); },
            [](uint32_t c) { return e2m1_to_float(uint8_t(c)); }, "the 4-bit float of NVFP4 and MXFP4; saturates at 6"},
    Element{"e4m3", 4, 3, 1, [](float x) -> uint32_t { return e4m3_from_float(x); },
            [](uint32_t c) { return e4m3_to_float(uint8_t(c)); },
            "FP8 weights, NVFP4 block scales; largest 448, no infinity"},
    Element{"e5m2", 5, 2, 1, [](float x) -> uint32_t { return e5m2_from_float(x); },
            [](uint32_t c) { return e5m2_to_float(uint8_t(c)); },
            "FP8 gradients; IEEE infinity and NaN, largest 57344"},
    Element{"e8m0", 8, 0, 0, [](float x) -> uint32_t { return e8m0_from_float(x); },
            [](uint32_t c) { return e8m0_to_float(uint8_t(c)); }, "MX block scales: 2^(code - 127), 255 is NaN"},
    Element{"fp16", 5, 10, 1, [](float x) -> uint32_t { return fp16_from_float(x); },
            [](uint32_t c) { return fp16_to_float(uint16_t(c)); }, "IEEE half; largest 65504"},
    Element{"bf16", 8, 7, 1, [](float x) -> uint32_t { return bf16_from_float(x); },
            [](uint32_t c) { return bf16_to_float(uint16_t(c)); }, "the upper half of FP32"},
    Element{"fp32", 8, 23, 1, [](float x) -> uint32_t { return float_bits(x); },
            [](uint32_t c) { return float_from_bits(c); }, "IEEE single"},
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

std::string element_text(const Element& e) {
    std::string text = fmt::format("{}: {} sign, {} exponent, {} mantissa bits. {}.\n\n", e.name, e.sign_bits,
                                   e.exponent_bits, e.mantissa_bits, e.note);
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

// One row of one block, quantized and shown step by step. Everything a format needs: the scale lines and per-element
// code.
struct BlockWalk {
    std::string steps;
    std::vector<uint32_t> codes;
    std::vector<float> values;
};

float max_magnitude(std::span<const float> numbers) {
    float amax = 0;
    for (float x : numbers) amax = std::max(amax, magnitude(x));
    return amax;
}

BlockWalk walk_nvfp4(std::span<const float> w, Arithmetic arithmetic) {
    const float amax = max_magnitude(w), s2 = nvfp4_tensor_scale(amax, 448, arithmetic);
    const uint8_t s8 = nvfp4_dynamic_scale(amax, s2);
    const float d = nvfp4_decode_scale(s8, s2);
    BlockWalk walk;
    walk.steps = fmt::format(
        "  largest magnitude           {:.9g}\n"
        "  tensor scale  amax/2688     {:.9g}   (as if this block were the whole tensor)\n"
        "  block scale   amax/(6 ts)   {:.9g} -> E4M3 0x{:02X} = {:.9g}\n"
        "  step          bs * ts       {:.9g}\n",
        amax, s2, amax / (6 * s2), s8, e4m3_to_float(s8), d);
    for (float x : w) {
        walk.codes.push_back(nvfp4_code(x, d));
        walk.values.push_back(e2m1_to_float(uint8_t(walk.codes.back())) * d);
    }
    return walk;
}

BlockWalk walk_mx(std::span<const float> w, bool fp8) {
    const float amax = max_magnitude(w);
    const uint8_t byte = fp8 ? mxfp8_scale(amax) : mxfp4_scale(amax);
    const float inverse = mx_inverse_scale(byte), scale = e8m0_to_float(byte);
    BlockWalk walk;
    walk.steps = fmt::format(
        "  largest magnitude           {:.9g}\n  block scale                 E8M0 0x{:02X} = 2^{} = {:.9g}\n", amax,
        byte, int(byte) - 127, scale);
    for (float x : w) {
        walk.codes.push_back(fp8 ? mxfp8_code(x, inverse) : mxfp4_code(x, inverse));
        const uint8_t code = uint8_t(walk.codes.back());
        walk.values.push_back((fp8 ? e4m3_to_float(code) : e2m1_to_float(code)) * scale);
    }
    return walk;
}

BlockWalk walk_fp8(std::span<const float> w, Format format, Arithmetic arithmetic) {
    const float amax = max_magnitude(w), scale = fp8_scale(amax, arithmetic),
                divisor = fp8_tensor_divisor(scale, arithmetic);
    BlockWalk walk;
    walk.steps =
        fmt::format("  largest magnitude           {:.9g}\n  scale         amax/448      {:.9g}\n", amax, scale);
    for (float x : w) {
        walk.codes.push_back(format == Format::fp8 ? fp8_tensor_code(round_to_bf16(x), divisor) : fp8_code(x, scale));
        walk.values.push_back(e4m3_to_float(uint8_t(walk.codes.back())) * scale);
    }
    return walk;
}

std::string block_text(Format format, std::span<const float> numbers, Arithmetic arithmetic) {
    const bool four_bits = format_layout(format).code_bits == 4;
    BlockWalk walk = format == Format::mxfp4 || format == Format::mxfp8 ? walk_mx(numbers, format == Format::mxfp8)
                     : four_bits                                        ? walk_nvfp4(numbers, arithmetic)
                                                                        : walk_fp8(numbers, format, arithmetic);
    std::string text =
        fmt::format("{}, one block of {} numbers\n{}\n  {:>14} {:>6} {:>12} {:>14} {:>13}\n", format_name(format),
                    numbers.size(), walk.steps, "number", "code", "element", "value", "error");
    const Element& element = *find_element(four_bits ? "e2m1" : "e4m3");
    double squared_error = 0, squared = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
        const double error = double(walk.values[i]) - double(numbers[i]);
        squared_error += error * error;
        squared += double(numbers[i]) * double(numbers[i]);
        text += fmt::format("  {:>14.8g} {:>6} {:>12.6g} {:>14.8g} {:>+13.4g}\n", numbers[i],
                            fmt::format("0x{:0{}X}", walk.codes[i], four_bits ? 1 : 2), element.decode(walk.codes[i]),
                            walk.values[i], error);
    }
    if (squared_error > 0 && squared > 0)
        text += fmt::format("\n  signal to quantization noise {:.2f} dB\n", 10 * std::log10(squared / squared_error));
    return text;
}

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
        text += fmt::format("  {:<13} {:>2} bits  S{} E{} M{:<3} {}\n", e.name, e.bits(), e.sign_bits, e.exponent_bits,
                            e.mantissa_bits, e.note);
    text += "\nBlock formats (bits per weight of a 4096 x 4096 matrix, scales included)\n";
    for (const BlockInfo& b : block_formats)
        text += fmt::format("  {:<13} {:>6.3f}   {}\n", format_name(b.format), bits_per_element(b.format, 4096, 4096),
                            b.rule);
    return text + "\nTry: nibble formats e4m3 | nibble formats 0.1 -3 | nibble formats nvfp4 0.1 -3 0.02\n";
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

Result<std::string> quantized_text(std::string_view name, std::span<const float> numbers, Arithmetic arithmetic) {
    if (const Element* e = find_element(name)) {
        std::string text;
        for (float x : numbers) text += number_header(x) + number_line(*e, x);
        return text;
    }
    const Format format = *format_from_name(name);
    const int block = format_layout(format).block;
    if (block && numbers.size() > size_t(block))
        return fail("{} has blocks of {} numbers; {} were given", name, block, numbers.size());
    for (float x : numbers)
        if (!is_finite(x)) return fail("{} is not finite: no scale can hold it", x);
    return block_text(format, numbers, arithmetic);
}

}  // namespace nibble
