#include "jobs/formats_block.h"

#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace nibble {
namespace {

float max_magnitude(std::span<const float> numbers) {
    float amax = 0;
    for (float x : numbers) amax = std::max(amax, magnitude(x));
    return amax;
}

std::string tensor_line(float own, float amax) {
    return own == amax ? "(as if this block were the whole tensor; --amax changes it)"
                       : fmt::format("(amax {:.9g} of the tensor)", amax);
}

// Divides by the scale and rounds to E2M1.
void add_e2m1(BlockTrace& trace, std::span<const float> w, float step) {
    for (float x : w) {
        const uint8_t code = nvfp4_code(x, step);
        trace.add(x / step, code, e2m1_to_float(code), e2m1_to_float(code) * step);
    }
}

BlockTrace trace_nvfp4(std::span<const float> w, float amax, Arithmetic arithmetic) {
    const float own = max_magnitude(w), s2 = nvfp4_tensor_scale(amax, 448, arithmetic);
    const uint8_t s8 = nvfp4_dynamic_scale(own, s2);
    const float step = nvfp4_decode_scale(s8, s2), exact = own / (6 * s2);
    BlockTrace trace;
    trace.steps = fmt::format(
        "  largest magnitude           {:.9g}\n"
        "  tensor scale  amax/2688     {:.9g}   {}\n"
        "  block scale   own/(6 ts)    {:.9g} -> E4M3 0x{:02X} = {:.9g}   ({:+.3g} % by rounding)\n"
        "  step          bs * ts       {:.9g}\n",
        own, s2, tensor_line(own, amax), exact, s8, e4m3_to_float(s8),
        exact > 0 ? 100 * (double(e4m3_to_float(s8)) / double(exact) - 1) : 0.0, step);
    trace.scales = {{"tensor_scale", s2}, {"block_scale", e4m3_to_float(s8)}, {"step", step}};
    add_e2m1(trace, w, step);
    return trace;
}

BlockTrace trace_mx(std::span<const float> w, bool fp8) {
    const float amax = max_magnitude(w);
    const uint8_t byte = fp8 ? mxfp8_scale(amax) : mxfp4_scale(amax);
    const float inverse = mx_inverse_scale(byte), scale = e8m0_to_float(byte);
    BlockTrace trace;
    trace.steps = fmt::format(
        "  largest magnitude           {:.9g}\n"
        "  block scale                 E8M0 0x{:02X} = 2^{} = {:.9g}   (the smallest with {} * scale >= {:.9g})\n",
        amax, byte, int(byte) - 127, scale, fp8 ? 448 : 6, amax);
    trace.scales = {{"block_scale", scale}};
    for (float x : w) {
        const uint8_t code = fp8 ? mxfp8_code(x, inverse) : mxfp4_code(x, inverse);
        const float element = fp8 ? e4m3_to_float(code) : e2m1_to_float(code);
        trace.add(x * inverse, code, element, element * scale);
    }
    return trace;
}

BlockTrace trace_fp8(std::span<const float> w, Format format, float amax, Arithmetic arithmetic) {
    const bool tensor = format == Format::fp8;
    const float scale = fp8_scale(amax, arithmetic), divisor = fp8_tensor_divisor(scale, arithmetic, DType::bf16);
    BlockTrace trace;
    trace.steps = fmt::format("  largest magnitude           {:.9g}\n  scale         amax/448      {:.9g}   {}\n",
                              max_magnitude(w), scale, tensor ? tensor_line(max_magnitude(w), amax) : "");
    if (tensor)
        trace.steps += fmt::format("  divisor                     {:.9g}   (of BF16 weights: {})\n", divisor,
                                   divisor == scale ? "the scale itself" : "a GPU rounds the scale to BF16");
    trace.scales = {{"scale", scale}, {"divisor", divisor}};
    for (float x : w) {
        const float weight = tensor ? round_to_bf16(x) : x;
        const uint8_t code = tensor ? fp8_tensor_code(weight, divisor, DType::bf16) : fp8_code(weight, scale);
        trace.add(tensor ? round_to_bf16(weight / divisor) : weight / scale, code, e4m3_to_float(code),
                  e4m3_to_float(code) * scale);
    }
    return trace;
}

BlockTrace trace_int4(std::span<const float> w) {
    const float amax = max_magnitude(w), scale = int4_scale(amax);
    BlockTrace trace;
    trace.steps = fmt::format(
        "  largest magnitude           {:.9g}\n"
        "  group scale   amax/7.5      {:.9g} -> BF16 {:.9g}\n",
        amax, amax / 7.5f, scale);
    trace.scales = {{"group_scale", scale}};
    for (float x : w) {
        const float weight = round_to_bf16(x);
        const uint8_t code = int4_code(weight, scale, DType::bf16);
        trace.add(round_to_bf16(weight / scale), code, int4_to_float(code), int4_to_float(code) * scale);
    }
    return trace;
}

std::string trace_table(const BlockTrace& trace, std::span<const float> numbers, bool four_bits) {
    std::string text = fmt::format("{}\n  {:>14} {:>13} {:>12} {:>6} {:>14} {:>13}\n", trace.steps, "number",
                                   "quotient", "element", "code", "value", "error");
    double squared_error = 0, squared = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
        const double error = double(trace.values[i]) - double(numbers[i]);
        squared_error += error * error;
        squared += double(numbers[i]) * double(numbers[i]);
        text += fmt::format("  {:>14.8g} {:>13.6g} {:>12.6g} {:>6} {:>14.8g} {:>+13.4g}\n", numbers[i],
                            trace.quotients[i], trace.elements[i],
                            fmt::format("0x{:0{}X}", trace.codes[i], four_bits ? 1 : 2), trace.values[i], error);
    }
    if (squared_error > 0 && squared > 0)
        text += fmt::format("\n  signal to quantization noise {:.2f} dB\n", 10 * std::log10(squared / squared_error));
    return text;
}

// Shows both choices of "four over six": the block's maximum is mapped to the element 6 or 4. Both use the tensor scale
// amax/1536, which permits block scales 1.5 times as large.
std::string four_over_six(std::span<const float> numbers, float amax, Arithmetic arithmetic) {
    const float own = max_magnitude(numbers), s2 = nvfp4_tensor_scale(amax, 256, arithmetic);
    const FakeScale fake = nvfp4_fake_scale(amax, 256, arithmetic);
    float block[nvfp4_block] = {};
    std::copy(numbers.begin(), numbers.end(), block);
    BlockTrace traces[2];
    float losses[2], multipliers[2] = {1.0f, 1.5f};
    uint8_t scales[2];
    for (int i = 0; i < 2; ++i) {
        losses[i] = nvfp4_fake_loss(block, nvfp4_fake_block_scale(own * multipliers[i], fake, arithmetic));
        scales[i] = nvfp4_static_scale(own * multipliers[i], amax, 256, arithmetic);
        add_e2m1(traces[i], numbers, nvfp4_decode_scale(scales[i], s2));
    }
    std::string text = fmt::format(
        "\nFour over six (nvfp4_four_over_six): tensor scale amax/1536 = {:.9g}\n"
        "  {:>14}   {:>12} {:>8} {:>14}   {:>12} {:>8} {:>14}\n",
        s2, "", "six: quotient", "element", "value", "four: quotient", "element", "value");
    for (size_t i = 0; i < numbers.size(); ++i)
        text += fmt::format("  {:>14.8g}   {:>13.6g} {:>8.3g} {:>14.8g}   {:>14.6g} {:>8.3g} {:>14.8g}\n", numbers[i],
                            traces[0].quotients[i], traces[0].elements[i], traces[0].values[i], traces[1].quotients[i],
                            traces[1].elements[i], traces[1].values[i]);
    text += fmt::format("  {:>14}   E4M3 0x{:02X} = {:<10.6g} loss {:<11.5g}   E4M3 0x{:02X} = {:<10.6g} loss {:.5g}\n",
                        "block scale", scales[0], e4m3_to_float(scales[0]), losses[0], scales[1],
                        e4m3_to_float(scales[1]), losses[1]);
    return text + fmt::format("  chosen: {}\n", losses[1] < losses[0] ? "four, which loses less" : "six");
}

}  // namespace

Result<BlockTrace> trace_block(Format format, std::span<const float> numbers, Arithmetic arithmetic,
                               std::optional<float> amax) {
    const FormatLayout layout = format_layout(format);
    const std::string_view name = format_name(format);
    const int block = layout.whole_inputs();
    if (block && numbers.size() > size_t(block))
        return fail("{} has blocks of {} numbers; {} were given", name, block, numbers.size());
    for (float x : numbers)
        if (!is_finite(x)) return fail("{} is not finite: no scale can hold it", x);
    const float own = max_magnitude(numbers);
    if (amax && !layout.tensor_scale)
        return fail("--amax: the scales of {} do not depend on the tensor's maximum", name);
    if (amax && !(is_finite(*amax) && *amax >= own))
        return fail("--amax {}: the tensor's largest magnitude is at least that of these numbers, {}", *amax, own);
    const float whole = amax.value_or(own);
    if (format == Format::mxfp4 || format == Format::mxfp8) return trace_mx(numbers, format == Format::mxfp8);
    if (format == Format::int4) return trace_int4(numbers);
    return layout.code_bits == 4 ? trace_nvfp4(numbers, whole, arithmetic)
                                 : trace_fp8(numbers, format, whole, arithmetic);
}

Result<std::string> block_text(Format format, std::span<const float> numbers, Arithmetic arithmetic,
                               std::optional<float> amax) {
    NIBBLE_TRY(const BlockTrace trace, trace_block(format, numbers, arithmetic, amax));
    std::string text = fmt::format("{}, one block of {} numbers\n{}", format_name(format), numbers.size(),
                                   trace_table(trace, numbers, format_layout(format).code_bits == 4));
    if (format == Format::nvfp4) text += four_over_six(numbers, amax.value_or(max_magnitude(numbers)), arithmetic);
    return text;
}

}  // namespace nibble
