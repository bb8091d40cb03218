// Operations between the products of a forward pass: norms, rotary embedding, activations, sums, exponentials.
// Functions process one row on the calling thread and allocate nothing. `bf16` rounds each result to BF16 once.
//
// Every entry of the table computes the same bits. Elements are independent except in these sums:
//   layer_norm    both sums as in rms_norm, the first of x, the second of squares of x - mean
//   rms_norm      lane l of 16 sums the squares of elements j = l mod 16, s = fma(x, x, s), j ascending from s = +0;
//                 the lanes are added by a halving tree (l with l + 8, + 4, + 2, + 1).
//   log_softmax   runs of 4096: lanes and tree as above (additions) over exp(x - max), run totals added in FP64.
// exp is exp_f32 of kernels/exp.h.
#pragma once

#include "base/activation.h"
#include "base/error.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

struct ElementwiseKernels {
    std::string_view name;  // "avx512", "avx2", "ref"
    bool (*supported)();
    // y = (x * r) * w,  r = 1 / sqrt(sum(x^2) / n + eps)
    void (*rms_norm)(const float* x, const float* w, int64_t n, float eps, bool bf16, float* y);
    // y = fma((x - mean) * r, w, b),  mean = sum(x) / n,  r = 1 / sqrt(sum((x - mean)^2) / n + eps); b may be nullptr:
    // 0
    void (*layer_norm)(const float* x, const float* w, const float* b, int64_t n, float eps, bool bf16, float* y);
    // y = y + x, for residual streams and biases
    void (*add)(const float* x, int64_t n, bool bf16, float* y);
    // y = a(x) * up, or a(x) if up is nullptr. y may be x or up.
    //   silu: x / (1 + exp(-x));  gelu_tanh: x / (1 + exp(-z)), z = x * fma(c1, x * x, c0), c0 = 2 sqrt(2/pi),
    //   c1 = 0.044715 c0;  relu2: max(x, 0)^2
    void (*activate)(Activation activation, const float* x, const float* up, int64_t n, bool bf16, float* y);
    // y = x / (1 + exp(-g)), a product with the logistic sigmoid of a gate. y may be x or g.
    void (*gate)(const float* g, const float* x, int64_t n, bool bf16, float* y);
    // y = a(x) * (clamp(up, -limit, limit) + up_offset); y may be x or up
    void (*clamped_glu)(const ClampedGlu& glu, const float* x, const float* up, int64_t n, bool bf16, float* y);
    // x = soft_cap_f32(x, cap) of kernels/soft_cap.h
    void (*soft_cap)(float* x, int64_t n, float cap, bool bf16);
    // Rotates `heads` heads, `stride` floats apart, in place: pairs (i, i + dims/2), or (2i, 2i + 1) if interleaved,
    // become
    //   (fma(a, cos[i], -(b * sin[i])), fma(b, cos[i], a * sin[i])).
    void (*rope)(float* x, int64_t heads, int64_t stride, const float* cos, const float* sin, int64_t dims,
                 bool interleaved, bool bf16);
    void (*round_bf16)(float* x, int64_t n);
    // Returns the index of the first NaN or infinity, or -1.
    int64_t (*first_nonfinite)(const float* x, int64_t n);
    // y = (x - max) - float(log(sum exp(x - max))). y may be x. An infinite or NaN maximum gives NaN.
    void (*log_softmax)(const float* x, int64_t n, float* y);
};

// Fastest first, `ref` last.
std::span<const ElementwiseKernels> elementwise_kernels();
// Returns the first supported entry, or the one named by `force`. Errors: an unknown name, an entry that this CPU does
// not support; the message lists the choices.
Result<const ElementwiseKernels*> select_elementwise_kernels(std::string_view force = {});

}  // namespace nibble
