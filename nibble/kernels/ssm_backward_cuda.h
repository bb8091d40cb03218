// Backward pass of Mamba-2 between its two products on a GPU, of texts that begin from nothing (mamba_step() of
// kernels/ssm_cuda.h). All that lies between is computed again from what in_proj gave.
//
// With S the states of a head, u = dt x, and H the gradient of the states (H[t] = dy[t] C[t] + decay[t + 1] H[t + 1]):
//   dC[t] = S[t] dy[t]     dB[t] = H[t] u[t]     du[t] = H[t] B[t]
//   d log decay[t] = sum over s >= t of (C[s] . dC[s] - B[s] . dB[s])
// the last because the pairs (read at s, written at j) that a decay stands between are those read at or behind t less
// those written there (what a chunked form of the scan sums, arXiv 2405.21060). So no state is kept. Sums run over
// tokens, heads of a group and states in fixed orders.
//
// Pointers are device pointers.
#pragma once

#include "kernels/ssm_cuda.h"

namespace nibble::cuda {

struct MambaBackward {
    MambaShape shape;                      // head_dim and state at most 128; states in FP32
    int64_t tokens = 0;                    // at most 65535
    int segments = 0;                      // at most 65535
    const MambaSegment* list = nullptr;    // [segments] on the device, one behind the other, without states
    const int32_t* first = nullptr;        // [tokens]: the row where a row's segment begins
    const std::byte* projected = nullptr;  // [tokens, inner + channels + heads] BF16
    // As MambaStep has them.
    const float *conv_weight = nullptr, *conv_bias = nullptr, *a = nullptr, *d = nullptr, *dt_bias = nullptr,
                *norm = nullptr;
    float dt_min = 0, eps = 0;
    const std::byte* d_mixed = nullptr;  // [tokens, inner] BF16: the gradient of MambaStep::out
    std::byte* d_projected = nullptr;    // [tokens, inner + channels + heads] BF16
    // Gradients of parameters, written: [channels, conv], [channels], [heads] three times, [inner]; null: not wanted.
    float *d_conv_weight = nullptr, *d_conv_bias = nullptr, *d_a_log = nullptr, *d_d = nullptr, *d_dt_bias = nullptr,
          *d_norm = nullptr;
    std::byte* workspace = nullptr;  // mamba_backward_workspace()
};
bool has_mamba_backward(const MambaShape& shape);
int64_t mamba_backward_workspace(const MambaShape& shape, int64_t tokens);
Status mamba_backward(const MambaBackward& b, const Stream& stream);

// Parameters as the step reads them: to [conv][channels] from [channels][conv]; a = -exp(a_log).
Status mamba_parameters(const MambaShape& shape, const float* conv, const float* a_log, float* conv_weight, float* a,
                        const Stream& stream);

}  // namespace nibble::cuda
