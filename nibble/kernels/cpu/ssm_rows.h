// One head of the scan, and what the instruction sets' files implement. Plain data only: see vec_avx512.h.
#pragma once

#include <cstdint>

namespace nibble {

// One head over consecutive tokens. Strides in floats.
struct SsmHead {
    const float *x, *b, *c;  // [tokens] rows: x [head_dim], B and C [state_size]
    int64_t stride;          // of x, b and c
    const float *decay, *dt;
    int64_t dt_stride;
    float d;
    float* state;  // [state_size][round_up(head_dim, 16)]; lanes past head_dim are zero
    float* y;      // [tokens] rows of head_dim
    int64_t y_stride;
    int64_t tokens;
    int head_dim, state_size;
};

inline constexpr int ssm_most_head_dim = 1024;

namespace cpu {

void ssm_scan_avx2(const SsmHead& head);
void ssm_scan_avx512(const SsmHead& head);
void ssm_convolve_avx2(const float* const* taps, int conv, const float* weight, const float* bias, int64_t channels,
                       float* out);
void ssm_convolve_avx512(const float* const* taps, int conv, const float* weight, const float* bias, int64_t channels,
                         float* out);

}  // namespace cpu
}  // namespace nibble
