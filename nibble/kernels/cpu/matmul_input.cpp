#include "kernels/cpu/matmul_input.h"

#include "formats/fp8.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "kernels/cpu/matmul_cpu.h"

#include <algorithm>

namespace nibble::cpu {
namespace {

float row_scale(const float* x, int64_t n, const RowKernels& rows) {
    return fp8_scale(float_from_bits(rows.f32.max_magnitude_bits(x, n)), Arithmetic::true_division);
}

// Replaces NaN from overflow of x / scale by the largest value; NaN inputs stay NaN.
void saturate(const float* x, int64_t n, uint8_t* codes) {
    for (int64_t i = 0; i < n; ++i)
        if ((codes[i] & 0x7F) == e4m3_nan_code && x[i] == x[i]) codes[i] &= 0xFE;
}

struct RowCodes {
    std::vector<uint8_t> codes, block_scales;
    std::vector<float> float_scales, factors;

    RowCodes(ActivationFormat f, int64_t cols)
        : codes(static_cast<size_t>(activation_code_bytes(f, cols))),
          block_scales(static_cast<size_t>(activation_block_scales(f, cols))),
          float_scales(static_cast<size_t>(activation_float_scales(f, cols))),
          factors(block_scales.size()) {}
    ActivationRow out() { return {codes.data(), block_scales.data(), float_scales.data()}; }
};

// Converts x [cols] to the x_k, g and scale of the contract.
void quantized_row(const RowKernels& rows, const MatmulInput& in, const float* x, int64_t cols, int64_t block,
                   RowCodes& row, float* values, float* g, int64_t blocks, float& scale) {
    quantize_row(rows, x, cols, in.activation, in.input_scale, row.out());
    const auto factors = [&](auto value) {
        for (size_t b = 0; b < row.factors.size(); ++b) row.factors[b] = value(row.block_scales[b]);
    };
    const float one = 1.0f;
    switch (in.activation) {
        case ActivationFormat::none:
            return;
        case ActivationFormat::nvfp4:
            scale = in.input_scale;
            factors(e4m3_to_float);
            return rows.decode_e2m1(row.codes.data(), row.factors.data(), nvfp4_block, cols, values);
        case ActivationFormat::mxfp4:
            factors(e8m0_to_float);
            return rows.decode_e2m1(row.codes.data(), row.factors.data(), mx_block, cols, values);
        case ActivationFormat::mxfp8:
            factors(e8m0_to_float);
            return rows.decode_e4m3(row.codes.data(), row.factors.data(), mx_block, cols, values);
        case ActivationFormat::fp8_group128:
            for (int64_t b = 0; b < blocks; ++b) g[b] = row.float_scales[static_cast<size_t>(b * block / fp8_tile)];
            return rows.decode_e4m3(row.codes.data(), &one, 0, cols, values);
        case ActivationFormat::fp8:
        case ActivationFormat::fp8_token:
            scale = in.activation == ActivationFormat::fp8 ? in.input_scale : row.float_scales[0];
            return rows.decode_e4m3(row.codes.data(), &one, 0, cols, values);
    }
}

}  // namespace

void quantize_row(const RowKernels& rows, const float* x, int64_t cols, ActivationFormat format, float input_scale,
                  const ActivationRow& out) {
    switch (format) {
        case ActivationFormat::none:
            return;
        case ActivationFormat::nvfp4: {
            Nvfp4Plan plan{};
            plan.mode = Nvfp4Plan::Mode::dynamic;
            plan.tensor_scale = input_scale;
            plan.dynamic_divisor = e2m1_max * input_scale;
            rows.f32.nvfp4(x, cols / nvfp4_block, plan, out.codes, out.block_scales);
            return;
        }
        case ActivationFormat::fp8:
            rows.f32.fp8(x, cols, input_scale, Quotient::f32, out.codes);
            return saturate(x, cols, out.codes);
        case ActivationFormat::fp8_token:
            out.float_scales[0] = row_scale(x, cols, rows);
            return rows.f32.fp8(x, cols, out.float_scales[0], Quotient::f32, out.codes);
        case ActivationFormat::fp8_group128:
            for (int64_t at = 0; at < cols; at += fp8_tile) {
                const int64_t n = std::min<int64_t>(fp8_tile, cols - at);
                out.float_scales[at / fp8_tile] = row_scale(x + at, n, rows);
                rows.f32.fp8(x + at, n, out.float_scales[at / fp8_tile], Quotient::f32, out.codes + at);
            }
            return;
        case ActivationFormat::mxfp8:
            return rows.f32.mxfp8(x, cols / mx_block, out.codes, out.block_scales);
        case ActivationFormat::mxfp4:
            return rows.mxfp4_inputs(x, cols / mx_block, out.codes, out.block_scales);
    }
}

FloatInputs float_inputs(const RowKernels& kernels, const MatmulInput& in, const PackedMatrix::Panels& w, int64_t block,
                         float factor, ThreadPool& pool) {
    const int64_t cols = w.cols, per_word = codes_per_word(w.code);
    FloatInputs out;
    out.k = (cols + per_word - 1) / per_word * per_word;
    out.blocks = (cols + block - 1) / block;
    out.scales.assign(static_cast<size_t>(in.rows), 1.0f);
    const bool quantized = in.activation != ActivationFormat::none;
    if (!quantized && out.k == cols && factor == 1.0f) {
        out.x = in.x, out.x_row = in.stride;
        return out;
    }
    out.x_owned = AlignedArray<float>(in.rows * out.k, false);
    out.x = out.x_owned.data(), out.x_row = out.k;
    const bool groups = in.activation == ActivationFormat::fp8_group128;
    if (groups) {
        out.g_owned = AlignedArray<float>(in.rows * out.blocks, false);
        out.g = out.g_owned.data();
    }
    constexpr int64_t together = 8;
    pool.parallel_for((in.rows + together - 1) / together, [&](int64_t task) {
        RowCodes codes(in.activation, cols);
        for (int64_t m = task * together; m < std::min(in.rows, (task + 1) * together); ++m) {
            const float* from = in.x + m * in.stride;
            float* x = out.x_owned.data() + m * out.k;
            if (quantized)
                quantized_row(kernels, in, from, cols, block, codes, x, out.g_owned.data() + m * out.blocks, out.blocks,
                              out.scales[static_cast<size_t>(m)]);
            else
                std::copy_n(from, cols, x);
            if (factor != 1.0f)
                for (int64_t k = 0; k < cols; ++k) x[k] *= factor;
            std::fill(x + cols, x + out.k, 0.0f);
        }
    });
    return out;
}

IntegerInputs integer_inputs(const MatmulTiles& isa, const RowKernels& kernels, const MatmulInput& in,
                             const RowTiles& tiles, int64_t cols, ThreadPool& pool) {
    IntegerInputs out;
    out.blocks = cols / nvfp4_block;
    out.x = AlignedArray<uint32_t>(in.rows * out.blocks * 4, false);
    out.offset = AlignedArray<int32_t>(in.rows * out.blocks, false);
    out.sx = AlignedArray<float>(in.rows * out.blocks, false);
    pool.parallel_for(tiles.tiles, [&](int64_t t) {
        const int64_t m = tiles.begin(t), blocks = out.blocks;
        const int rows = tiles.count(t);
        RowCodes codes(in.activation, cols);
        AlignedArray<uint32_t> words(rows * blocks * 4, false);
        AlignedArray<int32_t> offset(rows * blocks, false);
        AlignedArray<float> sx(rows * blocks, false);
        for (int r = 0; r < rows; ++r) {
            quantize_row(kernels, in.x + (m + r) * in.stride, cols, in.activation, in.input_scale, codes.out());
            isa.integer_row(codes.codes.data(), blocks, words.data() + r * blocks * 4, offset.data() + r * blocks);
            for (int64_t b = 0; b < blocks; ++b)
                sx[r * blocks + b] = 0.25f * e4m3_to_float(codes.block_scales[static_cast<size_t>(b)]);
        }
        const auto interleave = [&](auto* from, int64_t count, auto* to) {
            isa.interleave(reinterpret_cast<const uint32_t*>(from), count, rows, count,
                           reinterpret_cast<uint32_t*>(to));
        };
        interleave(words.data(), blocks * 4, out.x.data() + m * blocks * 4);
        interleave(offset.data(), blocks, out.offset.data() + m * blocks);
        interleave(sx.data(), blocks, out.sx.data() + m * blocks);
    });
    return out;
}

}  // namespace nibble::cpu
