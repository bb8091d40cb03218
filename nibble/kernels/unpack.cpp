#include "kernels/unpack.h"

#include "kernels/panels.h"
#include "kernels/ref/panel_values.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

using Panels = PackedMatrix::Panels;

std::unique_ptr<Panels> f32_panels(int64_t rows, int64_t cols) {
    auto p = std::make_unique<Panels>();
    p->rows = rows, p->cols = cols, p->words = cols;
    p->data = AlignedArray<std::byte>(p->panels() * p->panel_bytes());
    p->row_scales = AlignedArray<float>(p->panels() * panel_rows);
    for (int64_t r = 0; r < rows; ++r) p->row_scales[r] = 1.0f;
    return p;
}

// Decodes input k of the 32 outputs of a panel: (code * block scale) * scale of the row.
void decode_lanes(const Panels& w, int64_t panel, int64_t k, float (&out)[panel_rows]) {
    const float* scales = w.row_scales.data() + panel * panel_rows;
    if (w.code == WeightCode::f32) {
        const auto* words = reinterpret_cast<const float*>(w.panel_words(panel)) + k * panel_rows;
        for (int64_t lane = 0; lane < panel_rows; ++lane) out[lane] = words[lane] * scales[lane];
        return;
    }
    if (w.code == WeightCode::bf16) {
        const auto* words = reinterpret_cast<const uint32_t*>(w.panel_words(panel)) + k / 2 * panel_rows;
        const int shift = k % 2 == 0 ? 16 : 0;  // the even k is in the low half
        for (int64_t lane = 0; lane < panel_rows; ++lane)
            out[lane] = float_from_bits(words[lane] << shift & 0xFFFF0000u) * scales[lane];
        return;
    }
    for (int64_t lane = 0; lane < panel_rows; ++lane)
        out[lane] =
            ref::packed_code(w, panel, k, lane) * ref::packed_factor(w, panel, k / w.block, lane) * scales[lane];
}

}  // namespace

void decode_panel(const PackedMatrix& weight, int64_t panel, float* values) {
    for (int64_t k = 0; k < weight.cols(); ++k) {
        float lanes[panel_rows];
        decode_lanes(weight.panels(), panel, k, lanes);
        std::memcpy(values + k * panel_rows, lanes, sizeof lanes);
    }
}

PackedMatrix transposed(const PackedMatrix& weight, ThreadPool& pool) {
    const Panels& w = weight.panels();
    auto p = f32_panels(w.cols, w.rows);
    // Panel `to` of the transpose has inputs [32 to, 32 to + 32) of all outputs n: words[n * 32 + k].
    pool.parallel_for(p->panels(), [&](int64_t to) {
        auto* words = reinterpret_cast<float*>(p->panel_words(to));
        const int64_t first = to * panel_rows, count = std::min(panel_rows, w.cols - first);
        float tile[panel_rows][panel_rows] = {};  // [input][output]
        for (int64_t from = 0; from < w.panels(); ++from) {
            for (int64_t k = 0; k < count; ++k) decode_lanes(w, from, first + k, tile[k]);
            const int64_t rows = std::min(panel_rows, w.rows - from * panel_rows);
            for (int64_t n = 0; n < rows; ++n) {
                float* out = words + (from * panel_rows + n) * panel_rows;
                for (int64_t k = 0; k < panel_rows; ++k) out[k] = tile[k][n];
            }
        }
    });
    return PackedMatrix(std::move(p));
}

PackedMatrix pack_transposed(const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool) {
    auto p = f32_panels(cols, rows);
    pool.parallel_for(p->panels(), [&](int64_t panel) {
        auto* words = reinterpret_cast<float*>(p->panel_words(panel));
        const int64_t count = std::min(panel_rows, cols - panel * panel_rows);
        for (int64_t k = 0; k < rows; ++k)
            std::memcpy(words + k * panel_rows, x + k * stride + panel * panel_rows,
                        static_cast<size_t>(count) * sizeof(float));
    });
    return PackedMatrix(std::move(p));
}

PackedMatrix pack_rows(const float* x, int64_t rows, int64_t cols, int64_t stride, ThreadPool& pool) {
    auto p = f32_panels(rows, cols);
    pool.parallel_for(p->panels(), [&](int64_t panel) {
        auto* words = reinterpret_cast<float*>(p->panel_words(panel));
        const int64_t count = std::min(panel_rows, rows - panel * panel_rows);
        for (int64_t begin = 0; begin < cols; begin += 16)
            for (int64_t r = 0; r < count; ++r) {
                const float* from = x + (panel * panel_rows + r) * stride;
                for (int64_t k = begin; k < std::min(begin + 16, cols); ++k) words[k * panel_rows + r] = from[k];
            }
    });
    return PackedMatrix(std::move(p));
}

}  // namespace nibble
