// Kernels called by kernels/cuda/ssm/ssm_backward.cpp, which checks the arguments.
#pragma once

#include "kernels/cuda/ssm/ssm_launch.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

inline constexpr int conv_parts = 64;  // parts of the sums over tokens for a convolution's weights

struct MambaBackArgs {
    int heads, head_dim, groups, state, conv, inner, channels, segments;
    int64_t tokens, stride;
    const StateSegment* list;
    const int32_t* first;
    const uint16_t* projected;
    const float *conv_weight, *conv_bias, *a, *d, *dt_bias, *norm;
    float dt_min, eps;
    const uint16_t* d_mixed;
    uint16_t* d_projected;
    // Workspace.
    float* raw;                           // [tokens, channels]: before silu
    uint16_t* xbc;                        // [tokens, channels]: after silu
    float* d_xbc;                         // [tokens, channels]
    float *dt, *decay;                    // [tokens, heads]
    float *y, *dy, *du;                   // [tokens, inner]; y without D x
    float* part;                          // [tokens, max(heads * state, inner)]
    float *read, *written;                // [tokens, heads]: C . dC, which becomes d log decay; B . dB
    float *to_dt_bias, *to_a_log, *to_d;  // [tokens, heads]
    float* conv_sums;                     // [conv_parts, channels * conv]
};

// Rows of matrices that change with tokens, M[t] = factor M[t -+ 1] + a[t] b[t]^T, and out[t] = M[t] v[t].
enum class ScanRows : uint8_t { outputs, d_read, d_written, d_inputs };  // y; dC; dB; du

cudaError_t launch_mamba_inputs(const MambaBackArgs& a, cudaStream_t stream);  // raw, xbc, dt, decay
cudaError_t launch_mamba_scan(const MambaBackArgs& a, ScanRows rows, float* out, cudaStream_t stream);
cudaError_t launch_mamba_gate_back(const MambaBackArgs& a, cudaStream_t stream);  // dy, z of d_projected, part
cudaError_t launch_mamba_group_sums(const MambaBackArgs& a, bool of_c, cudaStream_t stream);
cudaError_t launch_mamba_decays(const MambaBackArgs& a, cudaStream_t stream);
cudaError_t launch_mamba_steps_back(const MambaBackArgs& a, cudaStream_t stream);
cudaError_t launch_mamba_conv_back(const MambaBackArgs& a, float* d_weight, cudaStream_t stream);
cudaError_t launch_mamba_parameters(int channels, int conv, int heads, const float* from, const float* a_log,
                                    float* conv_weight, float* a, cudaStream_t stream);

}  // namespace nibble::cuda
