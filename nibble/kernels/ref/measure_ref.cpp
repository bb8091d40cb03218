#include "formats/fp8.h"
#include "formats/int4.h"
#include "formats/mx.h"
#include "formats/nvfp4.h"
#include "kernels/load.h"
#include "kernels/ref/quantize_ref.h"

#include <cmath>

namespace nibble::ref {
namespace {

struct Element {
    uint8_t code;
    float value;    // value of the code, without the scale
    float scale;    // the decoded weight is value * scale
    float largest;  // largest magnitude of a code
};

// Returns element (i, j) of a panel.
Element element(const QuantView& q, const FormatLayout& layout, int64_t i, int64_t j) {
    const int64_t index = i * q.cols + j;
    Element e;
    if (layout.code_bits == 4) {
        const uint8_t byte = q.codes[index / 2];
        e.code = index % 2 ? byte >> 4 : byte & 0x0F;
        e.value = layout.integers ? int4_to_float(e.code) : e2m1_to_float(e.code);
        e.largest = layout.integers ? int4_most : e2m1_max;
    } else {
        e.code = q.codes[index];
        e.value = e4m3_to_float(e.code);
        e.largest = e4m3_max;
    }
    if (layout.block) {
        const uint8_t scale = q.block_scales[i * (q.cols / layout.block) + j / layout.block];
        e.scale = layout.e8m0_scales ? e8m0_to_float(scale) : nvfp4_decode_scale(scale, q.tensor_scale);
    } else if (layout.float_scales) {
        e.scale = q.float_scales[layout.scale_index(i, j, q.cols)];
    } else {
        e.scale = q.tensor_scale;
    }
    return e;
}

}  // namespace

void decode(const QuantView& panel, float* out) {
    const FormatLayout layout = format_layout(panel.format);
    for_each({0, panel.rows, 0, panel.cols}, [&](int64_t i, int64_t j) {
        const Element e = element(panel, layout, i, j);
        out[i * panel.cols + j] = e.value * e.scale;
    });
}

void measure(const MatrixView& weights, const QuantView& panel, QuantStats& stats) {
    const FormatLayout layout = format_layout(panel.format);
    for (int64_t i = 0; i < panel.rows; ++i) {
        LaneSum error, weight;
        for (int64_t j = 0; j < panel.cols; ++j) {
            const float w = load(weights, i, j);
            const Element e = element(panel, layout, i, j);
            const float y = e.value * e.scale;
            const float difference = magnitude(w - y);
            error.add(j, square(difference));
            weight.add(j, square(w));
            if (!(difference <= stats.max_error) && !std::isnan(stats.max_error)) stats.max_error = difference;
            stats.zeros += w != 0 && y == 0;
            stats.saturated += magnitude(w) > e.largest * e.scale;
            stats.sign_flips += (w < 0 && y > 0) || (w > 0 && y < 0);
            ++stats.codes[e.code];
        }
        stats.squared_error += error.total();
        stats.squared_weight += weight.total();
    }
    stats.elements += panel.rows * panel.cols;
    stats.blocks += block_scale_bytes(panel.format, panel.rows, panel.cols) +
                    float_scale_count(panel.format, panel.rows, panel.cols);
    for (int64_t k = 0; k < block_scale_bytes(panel.format, panel.rows, panel.cols); ++k)
        ++stats.scales[panel.block_scales[k]];
}

}  // namespace nibble::ref
