// Operations between the products of the backward pass, for one row on the calling thread in FP32. Every entry of the
// table computes the same bits.
#pragma once

#include "kernels/elementwise.h"

namespace nibble {

struct GradientKernels {
    std::string_view name;  // "avx512", "avx2", "ref"
    bool (*supported)();
    // Gradients of y = a(x) * up (up nullptr: y = a(x), and d_up is not written). With s = 1 / (1 + exp(-x)):
    //   silu       a = x s,        a' = s fma(x, 1 - s, 1)
    //   gelu_tanh  s of z = x fma(c1, x x, c0);  a = x s,  a' = fma(x s (1 - s), fma(3 c1, x x, c0), s)
    //   relu2      a = max(x, 0)^2, a' = 2 max(x, 0)
    //   dx = dy up a' (dy a' without up),  d_up = dy a
    // dx may be one of the inputs; d_up must not.
    void (*activate)(Activation activation, const float* x, const float* up, const float* dy, int64_t n, float* dx,
                     float* d_up);
    // y = exp(x - max) / sum, with the sum of log_softmax in kernels/elementwise.h. y may be x; -inf gives 0.
    void (*softmax)(const float* x, int64_t n, float* y);
    // dx = p * (dp - sum(p * dp)) * scale; sums over 16 lanes and a tree. dx may be dp.
    void (*softmax_backward)(const float* p, const float* dp, int64_t n, float scale, float* dx);
    // y = fma(a, x, y)
    void (*add_scaled)(float a, const float* x, int64_t n, float* y);
    // Returns the sum of a * b over 16 lanes and a tree.
    float (*dot)(const float* a, const float* b, int64_t n);
};

std::span<const GradientKernels> gradient_kernels();
Result<const GradientKernels*> select_gradient_kernels(std::string_view force = {});

}  // namespace nibble
