#include "formats/fp8.h"
#include "formats/nvfp4.h"
#include "kernels/cpu/panel.h"
#include "kernels/cpu/quantize_cpu.h"
#include "kernels/lane_sum.h"

#include <algorithm>
#include <cmath>

namespace nibble::cpu {
namespace {

// Visits a panel as runs within a row: run(row, column, count, segment, scales), with one scale per `segment` elements,
// or one for all (0). Runs of a row are in column order and start at multiples of 16.
template <class Run>
void for_runs(const QuantView& q, Run run) {
    const FormatLayout layout = format_layout(q.format);
    if (layout.block == 0) {
        const int64_t width = layout.scale_cols ? layout.scale_cols : q.cols;
        for (int64_t i = 0; i < q.rows; ++i)
            for (int64_t j = 0; j < q.cols; j += width)
                run(i, j, std::min(width, q.cols - j), 0,
                    layout.float_scales ? q.float_scales + layout.scale_index(i, j, q.cols) : &q.tensor_scale);
        return;
    }
    float value[256];
    for (int b = 0; b < 256; ++b) {
        const auto byte = static_cast<uint8_t>(b);
        value[b] = layout.e8m0_scales ? e8m0_to_float(byte) : nvfp4_decode_scale(byte, q.tensor_scale);
    }
    constexpr int64_t most = 256;  // blocks per run
    float scales[most];
    const uint8_t* byte = q.block_scales;
    const int64_t per_row = q.cols / layout.block;
    for (int64_t i = 0; i < q.rows; ++i) {
        for (int64_t b = 0; b < per_row; b += most) {
            const int64_t n = std::min(most, per_row - b);
            for (int64_t s = 0; s < n; ++s) scales[s] = value[*byte++];
            run(i, b * layout.block, n * layout.block, layout.block, scales);
        }
    }
}

}  // namespace

void decode(const RowKernels& k, const QuantView& panel, float* out) {
    const FormatLayout layout = format_layout(panel.format);
    const auto packed = layout.integers ? k.decode_int4 : k.decode_e2m1;
    for_runs(panel, [&](int64_t row, int64_t col, int64_t n, int segment, const float* scales) {
        const int64_t at = row * panel.cols + col;
        if (layout.code_bits == 4)
            packed(panel.codes + at / 2, scales, segment, n, out + at);
        else
            k.decode_e4m3(panel.codes + at, scales, segment, n, out + at);
    });
}

void measure(const RowKernels& k, const MatrixView& weights, const QuantView& panel, QuantStats& stats) {
    const WeightRows& rows = rows_for(k, weights);
    const FormatLayout layout = format_layout(panel.format);
    const auto packed = layout.integers ? rows.measure_int4 : rows.measure_e2m1;
    const int64_t n = panel.rows * panel.cols;
    MeasureTally tally{};
    for_runs(panel, [&](int64_t row, int64_t col, int64_t count, int segment, const float* values) {
        const int64_t at = row * panel.cols + col;
        if (layout.code_bits == 4)
            packed(weights_at(weights, row, col), panel.codes + at / 2, values, segment, count, tally);
        else
            rows.measure_e4m3(weights_at(weights, row, col), panel.codes + at, values, segment, count, tally);
        if (col + count < panel.cols) return;
        stats.squared_error += lane_total(tally.error.lane);
        stats.squared_weight += lane_total(tally.weight.lane);
        tally.error = tally.weight = {};
    });
    const float max_error = float_from_bits(tally.max_error_bits);
    if (!(max_error <= stats.max_error) && !std::isnan(stats.max_error)) stats.max_error = max_error;
    stats.zeros += tally.zeros;
    stats.saturated += tally.saturated;
    stats.sign_flips += tally.sign_flips;

    const int64_t block_scales = block_scale_bytes(panel.format, panel.rows, panel.cols);
    for (int64_t b = 0; b < block_scales; ++b) ++stats.scales[panel.block_scales[b]];
    for (size_t b = 0; b < 256; ++b) {
        const int64_t times =
            tally.code_bytes[0][b] + tally.code_bytes[1][b] + tally.code_bytes[2][b] + tally.code_bytes[3][b];
        if (layout.code_bits == 8) {
            stats.codes[b] += times;
        } else {
            stats.codes[b & 15] += times;
            stats.codes[b >> 4] += times;
        }
    }
    stats.elements += n;
    stats.blocks += block_scales + float_scale_count(panel.format, panel.rows, panel.cols);
}

}  // namespace nibble::cpu
