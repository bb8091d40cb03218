#include "formats/format.h"

#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"

#include <array>

namespace nibble {
namespace {

constexpr std::array quantized{Format::fp8,   Format::fp8_row, Format::fp8_block128, Format::mxfp8,
                               Format::mxfp4, Format::nvfp4,   Format::nvfp4_bs32,   Format::int4};

}  // namespace

std::string_view format_name(Format format) {
    switch (format) {
        case Format::none:
            return "none";
        case Format::fp8:
            return "fp8";
        case Format::fp8_row:
            return "fp8_row";
        case Format::fp8_block128:
            return "fp8_block128";
        case Format::mxfp8:
            return "mxfp8";
        case Format::mxfp4:
            return "mxfp4";
        case Format::nvfp4:
            return "nvfp4";
        case Format::nvfp4_bs32:
            return "nvfp4_bs32";
        case Format::int4:
            return "int4";
    }
    __builtin_unreachable();
}

std::optional<Format> format_from_name(std::string_view name) {
    if (name == "none") return Format::none;
    for (Format f : quantized)
        if (format_name(f) == name) return f;
    return std::nullopt;
}

std::span<const Format> all_formats() { return quantized; }

FormatLayout format_layout(Format format) {
    switch (format) {
        case Format::none:
            return {};
        case Format::fp8:
            return {.code_bits = 8, .tensor_scale = true};
        case Format::fp8_row:
            return {.code_bits = 8, .float_scales = true, .scale_rows = 1};
        case Format::fp8_block128:
            return {.code_bits = 8, .float_scales = true, .scale_rows = fp8_tile, .scale_cols = fp8_tile};
        case Format::mxfp8:
            return {.code_bits = 8, .block = mx_block, .e8m0_scales = true};
        case Format::mxfp4:
            return {.code_bits = 4, .block = mx_block, .e8m0_scales = true};
        case Format::nvfp4:
            return {.code_bits = 4, .block = nvfp4_block, .tensor_scale = true};
        case Format::nvfp4_bs32:
            return {.code_bits = 4, .block = 32, .tensor_scale = true};
        case Format::int4:
            return {.code_bits = 4,
                    .float_scales = true,
                    .integers = true,
                    .scale_rows = 1,
                    .scale_cols = int4_group,
                    .scale_bytes = 2};
    }
    __builtin_unreachable();
}

int64_t code_bytes(Format format, int64_t rows, int64_t cols) {
    return rows * cols * format_layout(format).code_bits / 8;
}

int64_t block_scale_bytes(Format format, int64_t rows, int64_t cols) {
    const int block = format_layout(format).block;
    return block ? rows * (cols / block) : 0;
}

int64_t float_scale_count(Format format, int64_t rows, int64_t cols) {
    const FormatLayout layout = format_layout(format);
    return layout.float_scales ? ceil_div<int64_t>(rows, layout.scale_rows) * layout.scales_per_row(cols) : 0;
}

double bits_per_element(Format format, int64_t rows, int64_t cols) {
    if (rows == 0 || cols == 0) return 0;
    const int64_t bytes = code_bytes(format, rows, cols) + block_scale_bytes(format, rows, cols) +
                          format_layout(format).scale_bytes * float_scale_count(format, rows, cols) +
                          (format_layout(format).tensor_scale ? 4 : 0);
    return 8.0 * static_cast<double>(bytes) / (static_cast<double>(rows) * static_cast<double>(cols));
}

bool format_fits(Format format, int64_t cols) {
    const FormatLayout layout = format_layout(format);
    const int block = layout.whole_inputs();
    return cols > 0 && (block == 0 || cols % block == 0) && (layout.code_bits != 4 || cols % 2 == 0);
}

std::string_view activation_name(ActivationFormat format) {
    switch (format) {
        case ActivationFormat::none:
            return "none";
        case ActivationFormat::nvfp4:
            return "nvfp4";
        case ActivationFormat::fp8:
            return "fp8";
        case ActivationFormat::fp8_token:
            return "fp8_token";
        case ActivationFormat::fp8_group128:
            return "fp8_group128";
        case ActivationFormat::mxfp8:
            return "mxfp8";
        case ActivationFormat::mxfp4:
            return "mxfp4";
    }
    __builtin_unreachable();
}

bool stores_input_scale(ActivationFormat format) {
    return format == ActivationFormat::nvfp4 || format == ActivationFormat::fp8;
}

std::string_view kv_name(KvFormat format) {
    switch (format) {
        case KvFormat::none:
            return "none";
        case KvFormat::fp8:
            return "fp8";
        case KvFormat::fp8_cast:
            return "fp8_cast";
        case KvFormat::nvfp4:
            return "nvfp4";
        case KvFormat::nvfp4_cast:
            return "nvfp4_cast";
        case KvFormat::fp8_page:
            return "fp8_page";
    }
    __builtin_unreachable();
}

std::optional<ActivationFormat> activation_from_name(std::string_view name) {
    using enum ActivationFormat;
    for (const ActivationFormat f : {none, nvfp4, fp8, fp8_token, fp8_group128, mxfp8, mxfp4})
        if (activation_name(f) == name) return f;
    return std::nullopt;
}

std::optional<KvFormat> kv_from_name(std::string_view name) {
    using enum KvFormat;
    for (const KvFormat f : {none, fp8, fp8_cast, nvfp4, nvfp4_cast, fp8_page})
        if (kv_name(f) == name) return f;
    return std::nullopt;
}

}  // namespace nibble
