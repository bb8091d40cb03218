// The reference product: plain loops.
#pragma once

#include "kernels/matmul.h"

#include <vector>

namespace nibble::ref {

void quantize_row(const float* x, int64_t cols, ActivationFormat format, float input_scale, const ActivationRow& out);

// One row of inputs with the names of the contract in matmul.h.
struct InputRow {
    std::vector<float> x;  // [K]
    std::vector<float> c;  // factor of the input, per block of B
    float scale = 1.0f;    // input scale
};

void matmul(const PackedMatrix& w, const MatmulInput& x, const MatmulOutput& out, ThreadPool& pool);
void matmul_in_tiles(const PackedMatrix& w, const MatmulInput& x, const MatmulOutput& out, ThreadPool& pool);

}  // namespace nibble::ref
