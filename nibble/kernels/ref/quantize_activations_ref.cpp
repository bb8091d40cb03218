#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "kernels/ref/matmul_ref.h"

#include <algorithm>

namespace nibble::ref {
namespace {

float row_amax(const float* x, int64_t n) {
    float amax = 0;
    for (int64_t i = 0; i < n; ++i) amax = std::max(amax, magnitude(x[i]));
    return amax;
}

void put_nibble(uint8_t* codes, int64_t i, uint8_t code) {
    codes[i / 2] = i % 2 ? static_cast<uint8_t>((codes[i / 2] & 0x0F) | code << 4) : code;
}

void fp8_run(const float* x, int64_t n, float scale, uint8_t* codes) {
    for (int64_t i = 0; i < n; ++i) codes[i] = fp8_code(round_to_bf16(x[i]), scale);
}

}  // namespace

void quantize_row(const float* x, int64_t cols, ActivationFormat format, float input_scale, const ActivationRow& out) {
    switch (format) {
        case ActivationFormat::none:
            return;
        case ActivationFormat::nvfp4:
            for (int64_t b = 0; b < cols / nvfp4_block; ++b) {
                const int64_t at = b * nvfp4_block;
                out.block_scales[b] = nvfp4_dynamic_scale(row_amax(x + at, nvfp4_block), input_scale);
                const float scale = nvfp4_decode_scale(out.block_scales[b], input_scale);
                for (int64_t i = at; i < at + nvfp4_block; ++i)
                    put_nibble(out.codes, i, nvfp4_code(round_to_bf16(x[i]), scale));
            }
            return;
        case ActivationFormat::fp8:
            for (int64_t i = 0; i < cols; ++i)
                out.codes[i] = e4m3_from_float_saturating(round_to_bf16(x[i]) / input_scale);
            return;
        case ActivationFormat::fp8_token:
            out.float_scales[0] = fp8_scale(row_amax(x, cols), Arithmetic::true_division);
            return fp8_run(x, cols, out.float_scales[0], out.codes);
        case ActivationFormat::fp8_group128:
            for (int64_t at = 0; at < cols; at += fp8_tile) {
                const int64_t n = std::min<int64_t>(fp8_tile, cols - at);
                const float scale = fp8_scale(row_amax(x + at, n), Arithmetic::true_division);
                out.float_scales[at / fp8_tile] = scale;
                fp8_run(x + at, n, scale, out.codes + at);
            }
            return;
        case ActivationFormat::mxfp8:
        case ActivationFormat::mxfp4:
            const bool fp4 = format == ActivationFormat::mxfp4;
            for (int64_t b = 0; b < cols / mx_block; ++b) {
                const int64_t at = b * mx_block;
                const float amax = row_amax(x + at, mx_block);
                out.block_scales[b] = fp4 ? mxfp4_input_scale(amax) : mxfp8_scale(amax);
                const float inverse = mx_inverse_scale(out.block_scales[b]);
                for (int64_t i = at; i < at + mx_block; ++i) {
                    if (fp4)
                        put_nibble(out.codes, i, mxfp4_input_code(round_to_bf16(x[i]), inverse));
                    else
                        out.codes[i] = mxfp8_code(round_to_bf16(x[i]), inverse);
                }
            }
            return;
    }
}

}  // namespace nibble::ref
