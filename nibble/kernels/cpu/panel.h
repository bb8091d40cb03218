// Selects the loops for the type of a panel's weights.
#pragma once

#include "kernels/cpu/rows.h"
#include "tensor/matrix.h"

namespace nibble::cpu {

inline const WeightRows& rows_for(const RowKernels& k, const MatrixView& w) {
    return w.dtype == DType::f32 ? k.f32 : k.bf16;
}

// `weights` is WeightSpec::weights.
inline const WeightRows& rows_for(const RowKernels& k, const MatrixView& w, DType weights) {
    return w.dtype == DType::f32 && weights != DType::bf16 ? k.f32_kept : rows_for(k, w);
}

inline const std::byte* weights_at(const MatrixView& w, int64_t row, int64_t col) {
    return w.data + (row * w.cols + col) * (w.dtype == DType::f32 ? 4 : 2);
}

}  // namespace nibble::cpu
