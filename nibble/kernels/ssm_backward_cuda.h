// Backward pass of Mamba-2 between its two products on a GPU, for mamba_step() of kernels/ssm_cuda.h on texts that
// start from a zero state. Intermediate values are recomputed from the output of in_proj.
//
// With S the states of a head, u = dt x, and H the gradient of the states (H[t] = dy[t] C[t] + decay[t + 1] H[t + 1]):
//   dC[t] = S[t] dy[t]     dB[t] = H[t] u[t]     du[t] = H[t] B[t]
//   d log decay[t] = sum over s >= t of (C[s] . dC[s] - B[s] . dB[s])
// The last line holds because a decay at t affects exactly the pairs (read at s, written at j) with j < t <= s: those
// read at or after t minus those also written at or after t (as summed by chunked forms of the scan, arXiv 2405.21060).
// No state is therefore stored. Sums run over tokens, heads of a group and states in fixed orders.
//
// Pointers are device pointers.
#pragma once

#include "kernels/ssm_cuda.h"

namespace nibble::cuda {

struct MambaBackward {
    MambaShape shape;                      // head_dim and state at most 128; states in FP32
    int64_t tokens = 0;                    // at most 65535
    int segments = 0;                      // at most 65535
    const StateSegment* list = nullptr;    // [segments] on the device, adjacent, without states
    const int32_t* first = nullptr;        // [tokens]: first row of a row's segment
    const std::byte* projected = nullptr;  // [tokens, inner + channels + heads] BF16
    // As in MambaStep.
    const float *conv_weight = nullptr, *conv_bias = nullptr, *a = nullptr, *d = nullptr, *dt_bias = nullptr,
                *norm = nullptr;
    float dt_min = 0, eps = 0;
    const std::byte* d_mixed = nullptr;  // [tokens, inner] BF16: the gradient of MambaStep::out
    std::byte* d_projected = nullptr;    // [tokens, inner + channels + heads] BF16
    // Gradients of parameters, written: [channels, conv], [channels], [heads] three times, [inner]; each may be null.
    float *d_conv_weight = nullptr, *d_conv_bias = nullptr, *d_a_log = nullptr, *d_d = nullptr, *d_dt_bias = nullptr,
          *d_norm = nullptr;
    std::byte* workspace = nullptr;  // mamba_backward_workspace()
};
bool has_mamba_backward(const MambaShape& shape);
int64_t mamba_backward_workspace(const MambaShape& shape, int64_t tokens);
Status mamba_backward(const MambaBackward& b, const Stream& stream);

// Converts parameters for the step: [channels][conv] to [conv][channels]; a = -exp(a_log).
Status mamba_parameters(const MambaShape& shape, const float* conv, const float* a_log, float* conv_weight, float* a,
                        const Stream& stream);

}  // namespace nibble::cuda
