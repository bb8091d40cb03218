// The slow obvious product.
#pragma once

#include "kernels/matmul.h"

#include <vector>

namespace nibble::ref {

void quantize_row(const float* x, int64_t cols, ActivationFormat format, float input_scale, const ActivationRow& out);

// One row of inputs as the contract of matmul.h sees it.
struct InputRow {
    std::vector<float> x;  // [K]
    std::vector<float> c;  // per block of B: the input's factor
    float scale = 1.0f;    // input scale
};

void matmul(const PackedMatrix& w, const MatmulInput& x, const MatmulOutput& out, ThreadPool& pool);
void matmul_in_tiles(const PackedMatrix& w, const MatmulInput& x, const MatmulOutput& out, ThreadPool& pool);

}  // namespace nibble::ref
