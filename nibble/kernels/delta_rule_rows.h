// One head of the gated delta rule, and the functions that instruction-set files implement. Plain data only: see
// kernels/cpu/vec_avx512.h.
#pragma once

#include <cstdint>

namespace nibble {

// One head over consecutive tokens of one sequence. Strides are in floats, from token to token.
struct DeltaHead {
    const float *q, *k;  // [tokens] rows of key_dim
    int64_t key_stride;
    const float* v;  // [tokens] rows of value_dim
    int64_t value_stride;
    const float *decay, *beta;  // [tokens]; decay: one number, or key_dim numbers where decay_by_channel
    int64_t decay_stride, beta_stride;
    float* state;  // [round_up(value_dim, 16) / 16][key_dim][16]; lanes past value_dim are zero
    float* y;      // [tokens] rows of value_dim
    int64_t y_stride;
    int64_t tokens;
    int key_dim, value_dim;
    bool decay_by_channel = false;
};

namespace cpu {

void delta_rule_avx2(const DeltaHead& head);
void delta_rule_avx512(const DeltaHead& head);

}  // namespace cpu
}  // namespace nibble
