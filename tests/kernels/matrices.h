// Weight matrices for tests, and a short way to quantize one whole.
#pragma once

#include "formats/minifloat.h"
#include "kernels/quantize.h"

#include <cmath>
#include <cstring>
#include <vector>

namespace nibble::test {

inline Matrix bf16_matrix(int64_t rows, int64_t cols, const std::vector<uint16_t>& codes) {
    Matrix m(DType::bf16, rows, cols);
    std::memcpy(m.data.data(), codes.data(), m.data.size());
    return m;
}

// The matrix of the golden vectors: heavy-tailed, with a zero row, a zero block, a tiny row and a negative block.
inline Matrix golden_matrix() {
    std::vector<uint16_t> codes(256 * 256);
    uint32_t state = 12345;
    const auto uniform = [&] {
        state = state * 1664525u + 1013904223u;
        return (state >> 8) / 16777216.0;
    };
    for (size_t i = 0; i < codes.size(); ++i) {
        const double u1 = uniform(), u2 = uniform();
        float v = bf16_to_float(bf16_from_float(static_cast<float>(((((u1 - .5) * u2) * u2) * u2) * u2 * .5)));
        const size_t row = i / 256, col = i % 256;
        if (row == 0 || (row == 1 && col < 16)) v = 0;
        if (row == 2) v *= 0x1p-30f;
        if (row == 3 && col >= 16 && col < 32) v = -std::fabs(v);
        codes[i] = bf16_from_float(v);
    }
    return bf16_matrix(256, 256, codes);
}

struct Quantized {
    QuantMatrix matrix;
    QuantStats stats;
};

// Uses one maximum for search and store, as for a single tensor.
inline Quantized quantize_whole(const QuantizeKernels& kernels, const MatrixView& w, const WeightSpec& spec) {
    const float g = kernels.scan(w).amax;
    const TensorAmax amax{g, spec.format == Format::fp8_block128 ? 0.0f : g};  // tiles have no fusion partners
    Quantized q{QuantMatrix(spec.format, w.rows, w.cols), {}};
    q.matrix.tensor_scale = tensor_scale(spec, amax);
    kernels.quantize(w, spec, amax, q.matrix.span(), q.stats);
    return q;
}

inline constexpr Search four_over_six{Search::Kind::multipliers, 1.0f, 1.5f, 0.5f};
inline constexpr Search sweep{Search::Kind::sweep};

}  // namespace nibble::test
