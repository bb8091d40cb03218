// Plain row-major matrices: MatrixView refers to data, Matrix owns it. A weight [out, in] has rows = out, cols = in.
#pragma once

#include "base/dtype.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nibble {

struct MatrixView {
    DType dtype = DType::bf16;
    int64_t rows = 0, cols = 0;
    const std::byte* data = nullptr;  // contiguous, no padding between rows; aligned for `dtype` only

    int64_t row_bytes() const { return cols * dtype_bytes(dtype); }
    int64_t bytes() const { return rows * row_bytes(); }
    // Returns rows [begin, begin + count).
    MatrixView panel(int64_t begin, int64_t count) const { return {dtype, count, cols, data + begin * row_bytes()}; }
};

struct Matrix {
    DType dtype = DType::bf16;
    int64_t rows = 0, cols = 0;
    std::vector<std::byte> data;

    Matrix() = default;
    Matrix(DType type, int64_t r, int64_t c) : dtype(type), rows(r), cols(c), data(size_t(r * c * dtype_bytes(type))) {}
    MatrixView view() const { return {dtype, rows, cols, data.data()}; }
};

}  // namespace nibble
