// One head of the scan, and the functions that instruction-set files implement. Plain data only: see
// kernels/cpu/vec_avx512.h.
#pragma once

#include <cstdint>

namespace nibble {

// How a sequence stores its SSM state. The 16-bit formats round after every token, not only at the end of a call, so
// that bits do not depend on how a prompt is split. bf16 and fp16 round to nearest; fp16_stochastic uses the draw for
// (stream, position, element).
enum class SsmStateFormat : uint8_t { f32, bf16, fp16, fp16_stochastic };
inline int64_t ssm_state_bytes(SsmStateFormat format) { return format == SsmStateFormat::f32 ? 4 : 2; }

// The order of the RMS norm over a group and the gate silu(z): RMS(y * silu(z)), RMS(y) * silu(z), or y * silu(z).
enum class SsmNorm : uint8_t { after_gate, before_gate, none };

// One head over consecutive tokens. Strides are in floats.
struct SsmHead {
    const float *x, *b, *c;  // [tokens] rows: x [head_dim], B and C [state_size]
    int64_t stride;          // distance of rows of x, B and C
    const float *decay, *dt;
    int64_t dt_stride;
    float d;
    float* state;  // [state_size][round_up(head_dim, 16)]; lanes past head_dim are zero
    float* y;      // [tokens] rows of head_dim
    int64_t y_stride;
    int64_t tokens;
    int head_dim, state_size;
};

// A head's state in 16 bits: BF16 or FP16 to nearest, or FP16 rounded stochastically. For the latter element i uses 16
// bits of draw block + 16 (i / 128) + i % 16, part (i / 16) % 8 of eight (low half of word 0, high half, word 1 ...).
// Lanes are draws, so vector code needs no shuffle.
struct SsmNarrow {
    float* state;
    uint16_t* stored;
    int64_t count;  // multiple of 16
    bool fp16, stochastic;
    uint64_t block = 0;  // multiple of 16
    uint64_t seed = 0, role = 0;
};

inline constexpr int ssm_most_head_dim = 1024;

namespace cpu {

void ssm_scan_avx2(const SsmHead& head);
void ssm_scan_avx512(const SsmHead& head);
void ssm_round_avx2(const SsmNarrow& narrow);
void ssm_round_avx512(const SsmNarrow& narrow);
void ssm_widen_avx2(const SsmNarrow& narrow);
void ssm_widen_avx512(const SsmNarrow& narrow);
void ssm_convolve_avx2(const float* const* taps, int conv, const float* weight, const float* bias, int64_t channels,
                       float* out);
void ssm_convolve_avx512(const float* const* taps, int conv, const float* weight, const float* bias, int64_t channels,
                         float* out);

}  // namespace cpu
}  // namespace nibble
