// Mamba-2's recurrence and its causal convolution, on a CPU.
//
// The scan runs token by token, also in prefill. The chunked form (products of chunk x chunk) sums in an order that
// depends on the chunk boundaries, so a decode step could not give the same bits. A head's state (32 KiB for 64 x 128)
// stays in L1; a step costs one load, multiply, store and two fused multiply-adds per 16 elements.
//
// Order of sums, per head h with group g = h / (heads / groups), for every lane p < head_dim:
//   u = dt * x[p];  state[s][p] = fma(u, B[s], decay * state[s][p])  (the product decay * state is rounded);
//   y[p] = fma(D, x[p], acc), acc = fma(state[s][p], C[s], acc), s ascending from acc = +0.
// Convolution: acc = bias; acc = fma(w[j], x[t - (conv - 1) + j], acc), j ascending.
// One output is one lane, so `ref`, AVX2 and AVX-512 give the same bits.
#pragma once

#include "base/error.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "kernels/ssm_rows.h"

#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

struct SsmKernels {
    std::string_view name;  // "avx512", "avx2", "ref"
    bool (*supported)();
    void (*scan)(const SsmHead& head);
    // Convolves one token: taps[j] points to the channels of token t - (conv - 1) + j; weight [conv][channels].
    void (*convolve)(const float* const* taps, int conv, const float* weight, const float* bias, int64_t channels,
                     float* out);
    // round: stored = rounded state, and state = the value of stored. widen: state = the value of stored.
    void (*round)(const SsmNarrow& narrow);
    void (*widen)(const SsmNarrow& narrow);
};

std::span<const SsmKernels> ssm_kernels();
// Returns the first supported entry, or the one named by `force`.
Result<const SsmKernels*> select_ssm_kernels(std::string_view force = {});

// All heads for consecutive tokens of one sequence.
struct SsmScan {
    int heads, head_dim, groups, state_size;
    const float *x, *b, *c;  // [tokens] rows: x [heads * head_dim], b and c [groups * state_size]
    int64_t stride;
    const float *decay, *dt, *d;  // decay and dt: [tokens][heads]; d: [heads]
    float* y;                     // [tokens][heads * head_dim]
    int64_t tokens;
    SsmStateFormat format = SsmStateFormat::f32;
    PhiloxStream stream;   // fp16_stochastic: (seed, layer)
    int64_t position = 0;  // fp16_stochastic: position of the first token in its sequence
};
int64_t ssm_state_elements(int heads, int head_dim, int state_size);
// state: ssm_state_elements() values in scan.format; all bytes zero at the start of a sequence.
void ssm_scan(const SsmKernels& kernels, const SsmScan& scan, std::byte* state, ThreadPool& pool);

}  // namespace nibble
