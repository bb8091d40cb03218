// The definitions of kernels/elementwise.h as plain loops.
#pragma once

#include "kernels/elementwise.h"

namespace nibble::ref {

void rms_norm(const float* x, const float* w, int64_t n, float eps, bool bf16, float* y);
void layer_norm(const float* x, const float* w, const float* b, int64_t n, float eps, bool bf16, float* y);
void add(const float* x, int64_t n, bool bf16, float* y);
void activate(Activation activation, const float* x, const float* up, int64_t n, bool bf16, float* y);
void gate(const float* g, const float* x, int64_t n, bool bf16, float* y);
void clamped_glu(const ClampedGlu& glu, const float* x, const float* up, int64_t n, bool bf16, float* y);
void soft_cap(float* x, int64_t n, float cap, bool bf16);
void rope(float* x, int64_t heads, int64_t stride, const float* cos, const float* sin, int64_t dims, bool interleaved,
          bool bf16);
void round_bf16(float* x, int64_t n);
int64_t first_nonfinite(const float* x, int64_t n);
void log_softmax(const float* x, int64_t n, float* y);

}  // namespace nibble::ref
