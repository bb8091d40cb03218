// Arguments of the functions in kernels/solver.h. Plain data, because instruction-set files include this header.
#pragma once

#include <cstdint>

namespace nibble {

// C[i, j] += (or -=) sum over k of A[k, i] * B[k, j]. Strides are in elements.
template <class T>
struct RankUpdate {
    int64_t m, n, k;
    const T* a;  // [k, m]
    int64_t a_stride;
    const T* b;  // [k, n]
    int64_t b_stride;
    T* c;  // [m, n]
    int64_t c_stride;
    bool subtract = false;
};

// The cost of rounding one column of a block of 16 and its effect on later columns: the block's part of the upper
// Cholesky factor U of the inverse Hessian.
struct BlockFactor {
    float weight[16];   // 1 / U[k, k]
    float row[16][16];  // U[k, j] / U[k, k] for j > k; other entries are not read
};

struct BlockChoice {
    int candidate;       // 0..15
    float cost;          // sum over k of (residual[k] * weight[k])^2
    float multiple[16];  // E2M1 values, -6..6
    float residual[16];  // x_k - multiple * scale, with x_k after feedback from earlier columns
};

// One row of a quadratic form: its codes, and y = e H for its error e = w - multiple * scale. All arrays are [n], n a
// multiple of 16.
struct RowDescent {
    int64_t n;
    const float* h;                 // [n, n], symmetric
    const float* inverse_diagonal;  // 1 / h[k, k]
    const float* scale;
    const float* inverse_scale;
    const float* other;  // contribution of other rows to the gradient
    float* multiple;     // E2M1 values
    float* y;
};

}  // namespace nibble
