// Functions of the instruction-set files for kernels/elementwise_backward.cpp. Plain data only.
#pragma once

#include <cstdint>

namespace nibble::cpu {

struct GradientRows {
    void (*activate[3])(const float* x, const float* up, const float* dy, int64_t n, float* dx, float* d_up);
    float (*maximum)(const float* x, int64_t n);
    float (*sum_exp)(const float* x, int64_t n, float max);
    void (*exp_over)(const float* x, int64_t n, float max, float total, float* y);  // exp(x - max) / total
    void (*softmax_backward)(const float* p, const float* dp, int64_t n, float scale, float* dx);
    void (*add_scaled)(float a, const float* x, int64_t n, float* y);
    float (*dot)(const float* a, const float* b, int64_t n);
};

extern const GradientRows gradient_avx2, gradient_avx512;

}  // namespace nibble::cpu
