#include "jobs/formats_text.h"

#include "formats/format.h"
#include "jobs/formats_block.h"
#include "jobs/formats_elements.h"

#include <fmt/format.h>

#include <cmath>

namespace nibble {
namespace {

// Returns sign, exponent and mantissa: "1 01 1".
std::string bit_fields(const ElementFormat& e, uint32_t code) {
    std::string text;
    for (int b = e.bits() - 1; b >= 0; --b) {
        text += (code >> b & 1) ? '1' : '0';
        if (b == e.bits() - e.sign_bits && e.sign_bits) text += ' ';
        if (b == e.mantissa_bits && e.mantissa_bits) text += ' ';
    }
    return text;
}

std::string number_line(const ElementFormat& e, float x) {
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

// Returns the formula of the value.
std::string formula(const ElementFormat& e) {
    if (e.mantissa_bits == 0) return fmt::format("  value          2^(e - {})\n", e.bias());
    const uint32_t divisor = 1u << e.mantissa_bits;
    return fmt::format(
        "  normal         (-1)^s * 2^(e - {0}) * (1 + m/{1}), e > 0\n"
        "  subnormal      (-1)^s * 2^{2} * m/{1}, e = 0; the smallest step is {3:.4g}\n",
        e.bias(), divisor, 1 - e.bias(), std::ldexp(1.0, 1 - e.bias() - e.mantissa_bits));
}

std::string element_text(const ElementFormat& e) {
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

}  // namespace

bool is_format_name(std::string_view name) {
    const auto format = format_from_name(name);
    return find_element(name) || (format && *format != Format::none);
}

std::string format_choices() {
    std::string text;
    for (const ElementFormat& e : element_formats()) text += fmt::format("{} ", e.name);
    for (const BlockFormat& b : block_formats()) text += fmt::format("{} ", format_name(b.format));
    text.pop_back();
    return text;
}

std::string overview_text() {
    std::string text = "Element formats\n";
    for (const ElementFormat& e : element_formats())
        text += fmt::format("  {:<13} {:>2} bits  S{} E{} M{:<3} bias {:<4} {}\n", e.name, e.bits(), e.sign_bits,
                            e.exponent_bits, e.mantissa_bits, e.bias(), e.note);
    text += "\nBlock formats (bits per weight of a 4096 x 4096 matrix, scales included)\n";
    for (const BlockFormat& b : block_formats())
        text += fmt::format("  {:<13} {:>6.3f}   {}\n", format_name(b.format), bits_per_element(b.format, 4096, 4096),
                            b.rule);
    text +=
        "\nQuantization produces no overflow and no NaN: weights that are not finite are refused, and scales come from "
        "maxima, so that quotients exceed the largest element only by rounding and then saturate. If a search chose a "
        "smaller scale, the largest weights saturate on purpose.\n";
    return text + "\nTry: nibble formats e4m3 | nibble formats 0.1 -3 | nibble formats nvfp4 0.1 -3 0.02 --amax 8\n";
}

Result<std::string> format_text(std::string_view name) {
    if (const ElementFormat* e = find_element(name)) return element_text(*e);
    for (const BlockFormat& b : block_formats())
        if (format_name(b.format) == name)
            return fmt::format("{}: {:.3f} bits per weight\n  {}\n\nTry: nibble formats {} 0.1 -3 0.02 1.5\n", name,
                               bits_per_element(b.format, 4096, 4096), b.rule, name);
    return fail("unknown format '{}'; formats: {}", name, format_choices());
}

std::string numbers_text(std::span<const float> numbers) {
    std::string text;
    for (float x : numbers) {
        text += number_header(x);
        for (const ElementFormat& e : element_formats()) text += number_line(e, x);
        text += '\n';
    }
    return text;
}

Result<std::string> quantized_text(std::string_view name, std::span<const float> numbers, Arithmetic arithmetic,
                                   std::optional<float> amax) {
    if (const ElementFormat* e = find_element(name)) {
        if (amax) return fail("--amax: {} is not a format with a tensor scale", name);
        std::string text;
        for (float x : numbers) text += number_header(x) + number_line(*e, x);
        return text;
    }
    return block_text(*format_from_name(name), numbers, arithmetic, amax);
}

}  // namespace nibble
