// Writes BF16, F16 or F32 rows as FP32 to out [rows, cols].
#pragma once

#include "formats/minifloat.h"
#include "tensor/matrix.h"

#include <cstring>

namespace nibble {

inline void widen(const MatrixView& view, float* out) {
    const int64_t n = view.rows * view.cols;
    if (view.dtype == DType::f32) {
        std::memcpy(out, view.data, static_cast<size_t>(4 * n));
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        uint16_t code;
        std::memcpy(&code, view.data + 2 * i, 2);
        out[i] = view.dtype == DType::bf16 ? bf16_to_float(code) : fp16_to_float(code);
    }
}

}  // namespace nibble
