#include "kernels/ref/matmul_ref.h"

#include "kernels/ref/elementwise_ref.h"
#include "kernels/ref/panel_values.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nibble::ref {
namespace {

using Panels = PackedMatrix::Panels;

uint8_t nibble_at(const uint8_t* codes, int64_t i) { return static_cast<uint8_t>(codes[i / 2] >> (i % 2 * 4) & 15); }

// `integers`: nvfp4 codes are returned without their block scales.
InputRow input_row(const float* x, int64_t cols, const MatmulInput& in, bool integers, int block) {
    InputRow row{{x, x + cols}, std::vector<float>(static_cast<size_t>((cols + block - 1) / block), 1.0f), 1.0f};
    const ActivationFormat f = in.activation;
    if (f == ActivationFormat::none) return row;
    std::vector<uint8_t> codes(static_cast<size_t>(activation_code_bytes(f, cols)));
    std::vector<uint8_t> block_scales(static_cast<size_t>(activation_block_scales(f, cols)));
    std::vector<float> float_scales(static_cast<size_t>(activation_float_scales(f, cols)));
    quantize_row(x, cols, f, in.input_scale, {codes.data(), block_scales.data(), float_scales.data()});
    const bool e2m1 = f == ActivationFormat::nvfp4 || f == ActivationFormat::mxfp4;
    for (size_t k = 0; k < row.x.size(); ++k)
        row.x[k] = e2m1 ? e2m1_to_float(nibble_at(codes.data(), static_cast<int64_t>(k))) : e4m3_to_float(codes[k]);
    switch (f) {
        case ActivationFormat::none:
            break;
        case ActivationFormat::nvfp4:
            row.scale = in.input_scale;
            if (integers)
                for (size_t b = 0; b < row.c.size(); ++b) row.c[b] = e4m3_to_float(block_scales[b]);
            else
                for (size_t k = 0; k < row.x.size(); ++k) row.x[k] *= e4m3_to_float(block_scales[k / nvfp4_block]);
            break;
        case ActivationFormat::fp8:
            row.scale = in.input_scale;
            break;
        case ActivationFormat::fp8_token:
            row.scale = float_scales[0];
            break;
        case ActivationFormat::fp8_group128:
            for (size_t b = 0; b < row.c.size(); ++b)
                row.c[b] = float_scales[b * static_cast<size_t>(block) / fp8_tile];
            break;
        case ActivationFormat::mxfp8:
        case ActivationFormat::mxfp4:
            for (size_t k = 0; k < row.x.size(); ++k) row.x[k] *= e8m0_to_float(block_scales[k / mx_block]);
            break;
    }
    return row;
}

// Computes the product with sum(row of inputs, values [K][32] of the panel's codes, panel, lane) for every output.
template <class Sum>
void product(const PackedMatrix& w, const MatmulInput& in, const MatmulOutput& out, bool integers, int block,
             ThreadPool& pool, Sum sum) {
    if (out.gated) {
        const int64_t n = w.rows(), half = n / 2;
        std::vector<float> both(static_cast<size_t>(in.rows * n));
        product(w, in, {both.data(), n, out.bias, out.bf16}, integers, block, pool, sum);
        for (int64_t m = 0; m < in.rows; ++m)
            activate(*out.gated, both.data() + m * n, both.data() + m * n + half, half, out.bf16,
                     out.y + m * out.stride);
        return;
    }
    const Panels& p = w.panels();
    std::vector<InputRow> rows;
    for (int64_t m = 0; m < in.rows; ++m) rows.push_back(input_row(in.x + m * in.stride, p.cols, in, integers, block));
    pool.parallel_for(p.panels(), [&](int64_t panel) {
        std::vector<float> values(static_cast<size_t>(p.cols * panel_rows));
        for (int64_t k = 0; k < p.cols; ++k)
            for (int64_t lane = 0; lane < panel_rows; ++lane)
                values[static_cast<size_t>(k * panel_rows + lane)] = packed_code(p, panel, k, lane);
        const int64_t count = std::min(panel_rows, p.rows - panel * panel_rows);
        for (int64_t m = 0; m < in.rows; ++m) {
            const InputRow& row = rows[static_cast<size_t>(m)];
            for (int64_t lane = 0; lane < count; ++lane) {
                const int64_t n = panel * panel_rows + lane;
                float y = sum(row, values, panel, lane) * (row.scale * p.row_scales[n]);
                if (out.bias) y += out.bias[n];
                out.y[m * out.stride + n] = out.bf16 ? round_to_bf16(y) : y;
            }
        }
    });
}

float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

}  // namespace

void matmul(const PackedMatrix& w, const MatmulInput& in, const MatmulOutput& out, ThreadPool& pool) {
    const Panels& p = w.panels();
    const int block = in.activation == ActivationFormat::fp8_group128 ? std::min(p.block, fp8_tile) : p.block;
    product(w, in, out, p.format == Format::nvfp4, block, pool,
            [&](const InputRow& row, const std::vector<float>& values, int64_t panel, int64_t lane) {
                float acc = 0;
                for (int64_t begin = 0; begin < p.cols; begin += block) {
                    float t = 0;
                    for (int64_t k = begin; k < std::min(begin + block, p.cols); ++k)
                        t = std::fma(row.x[static_cast<size_t>(k)], values[static_cast<size_t>(k * panel_rows + lane)],
                                     t);
                    const float c =
                        row.c[static_cast<size_t>(begin / block)] * packed_factor(p, panel, begin / p.block, lane);
                    acc = std::fma(t, c, acc);
                }
                return acc;
            });
}

void matmul_in_tiles(const PackedMatrix& w, const MatmulInput& in, const MatmulOutput& out, ThreadPool& pool) {
    if (!sums_in_tiles(w)) return matmul(w, in, out, pool);
    const Panels& p = w.panels();
    const bool tiled = p.tile_scales.size() != 0, groups = in.activation == ActivationFormat::fp8_group128;
    const int64_t block = tiled || groups ? fp8_tile : p.cols, tile = 32;
    product(w, in, out, false, static_cast<int>(std::max<int64_t>(block, 1)), pool,
            [&](const InputRow& row, const std::vector<float>& values, int64_t panel, int64_t lane) {
                const auto sum = [&](int64_t begin, int64_t end) {
                    float acc = 0;
                    for (; begin < end; begin += tile) {
                        float e = 0, o = 0;
                        for (int64_t k = begin; k < std::min(begin + tile, end); ++k) {
                            const float code = values[static_cast<size_t>(k * panel_rows + lane)];
                            const float weight =
                                flushed(tiled ? code : code * packed_factor(p, panel, k / p.block, lane));
                            const float x = flushed(round_to_bf16(row.x[static_cast<size_t>(k)]));
                            float& accumulator = (k - begin) % 2 ? o : e;
                            accumulator = flushed(std::fma(x, weight, accumulator));
                        }
                        acc = flushed(acc + flushed(e + o));
                    }
                    return acc;
                };
                if (!tiled && !groups) return sum(0, p.cols);
                float total = 0;
                for (int64_t begin = 0; begin < p.cols; begin += block) {
                    const float c = row.c[static_cast<size_t>(begin / block)] *
                                    (tiled ? packed_factor(p, panel, begin / block, lane) : 1.0f);
                    total = std::fma(sum(begin, std::min(begin + block, p.cols)), c, total);
                }
                return total;
            });
}

}  // namespace nibble::ref
