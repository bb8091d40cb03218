// Functions of the instruction-set files for kernels/elementwise.cpp. Plain data only.
#pragma once

#include <cstdint>

namespace nibble::cpu {

struct ElementwiseRows {
    float (*sum_squares)(const float* x, int64_t n);
    void (*scale_rows)(const float* x, const float* w, float r, int64_t n, bool bf16, float* y);
    float (*sum)(const float* x, int64_t n);
    float (*sum_deviations)(const float* x, float mean, int64_t n);
    void (*shift_rows)(const float* x, const float* w, const float* b, float mean, float r, int64_t n, bool bf16,
                       float* y);
    void (*add)(const float* x, int64_t n, bool bf16, float* y);
    void (*activate[3])(const float* x, const float* up, int64_t n, bool bf16, float* y);  // by Activation
    void (*gate)(const float* g, const float* x, int64_t n, bool bf16, float* y);
    void (*clamped_glu)(float limit, float alpha, float up_offset, bool activation_first, const float* x,
                        const float* up, int64_t n, bool bf16, float* y);
    void (*soft_cap)(float* x, int64_t n, float cap, bool bf16);
    void (*rope)(float* x, int64_t heads, int64_t stride, const float* cos, const float* sin, int64_t dims,
                 bool interleaved, bool bf16);
    void (*round_bf16)(float* x, int64_t n);
    int64_t (*first_nonfinite)(const float* x, int64_t n);
    float (*maximum)(const float* x, int64_t n);
    float (*sum_exp)(const float* x, int64_t n, float max);
    void (*subtract)(const float* x, int64_t n, float max, float log, float* y);
};

extern const ElementwiseRows elementwise_avx2, elementwise_avx512;

}  // namespace nibble::cpu
