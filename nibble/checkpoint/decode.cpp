#include "checkpoint/decode.h"

#include "formats/fp8.h"
#include "formats/int4.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace nibble {
namespace {

constexpr auto e4m3_values = [] {
    std::array<float, 256> values{};
    for (int code = 0; code < 256; ++code) values[size_t(code)] = e4m3_to_float(static_cast<uint8_t>(code));
    return values;
}();

constexpr auto e2m1_values = [] {
    std::array<float, 16> values{};
    for (int code = 0; code < 16; ++code) values[size_t(code)] = e2m1_to_float(static_cast<uint8_t>(code));
    return values;
}();

constexpr auto int4_values = [] {
    std::array<float, 16> values{};
    for (int code = 0; code < 16; ++code) values[size_t(code)] = int4_to_float(static_cast<uint8_t>(code));
    return values;
}();

// Decodes columns [begin, end) of a row whose codes start at `codes`, with one scale. Spans of 4-bit codes begin at an
// even column.
void decode_span(const uint8_t* codes, const FormatLayout& layout, int64_t begin, int64_t end, float scale,
                 uint16_t* out) {
    if (layout.code_bits == 8) {
        for (int64_t c = begin; c < end; ++c) out[c] = bf16_from_float(e4m3_values[codes[c]] * scale);
        return;
    }
    const auto& values = layout.integers ? int4_values : e2m1_values;
    for (int64_t c = begin; c < end; c += 2) {
        const uint8_t pair = codes[c / 2];
        out[c] = bf16_from_float(values[pair & 15u] * scale);
        out[c + 1] = bf16_from_float(values[pair >> 4] * scale);
    }
}

}  // namespace

void decode_bf16(const QuantView& panel, std::span<uint16_t> out) {
    const FormatLayout layout = format_layout(panel.format);
    const int64_t span = layout.block        ? layout.block
                         : layout.scale_cols ? layout.scale_cols
                                             : std::max<int64_t>(panel.cols, 1);
    for (int64_t row = 0; row < panel.rows; ++row) {
        const uint8_t* codes = panel.codes + code_bytes(panel.format, row, panel.cols);
        uint16_t* to = out.data() + row * panel.cols;
        const auto scale_of = [&](int64_t block) {
            if (layout.block) {
                const uint8_t s = panel.block_scales[row * (panel.cols / layout.block) + block];
                return layout.e8m0_scales ? e8m0_to_float(s) : e4m3_values[s] * panel.tensor_scale;
            }
            if (layout.float_scales) return panel.float_scales[layout.scale_index(row, block * span, panel.cols)];
            return panel.tensor_scale;
        };
        for (int64_t begin = 0, block = 0; begin < panel.cols; begin += span, ++block)
            decode_span(codes, layout, begin, std::min(begin + span, panel.cols), scale_of(block), to);
    }
}

MatrixView plain_as(const MatrixView& plain, DType dtype, Matrix& scratch) {
    const auto known = [](DType t) { return t == DType::bf16 || t == DType::f16 || t == DType::f32; };
    if (plain.dtype == dtype || !known(plain.dtype) || !known(dtype) || dtype == DType::f16) return plain;
    scratch = Matrix(dtype, plain.rows, plain.cols);
    for (int64_t i = 0; i < plain.rows * plain.cols; ++i) {
        float x = 0;
        if (plain.dtype == DType::f32) {
            std::memcpy(&x, plain.data + 4 * i, 4);
        } else {
            uint16_t half = 0;
            std::memcpy(&half, plain.data + 2 * i, 2);
            x = plain.dtype == DType::f16 ? fp16_to_float(half) : bf16_to_float(half);
        }
        if (dtype == DType::f32) {
            std::memcpy(scratch.data.data() + 4 * i, &x, 4);
        } else {
            const uint16_t rounded = bf16_from_float(x);
            std::memcpy(scratch.data.data() + 2 * i, &rounded, 2);
        }
    }
    return scratch.view();
}

}  // namespace nibble
