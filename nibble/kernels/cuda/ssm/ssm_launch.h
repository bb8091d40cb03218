// Kernels called by kernels/cuda/ssm/ssm.cpp, which checks the arguments.
#pragma once

#include "base/philox.h"
#include "kernels/ssm_rows.h"
#include "kernels/state_segment.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble::cuda {

struct SsmArgs {
    int heads = 0, head_dim = 0, groups = 0, state = 0, conv = 0;
    int inner = 0, channels = 0;
    int segments = 0;
    int64_t tokens = 0, longest = 0, stride = 0;  // stride: of projected
    const StateSegment* list = nullptr;
    const float* projected = nullptr;
    const float* conv_weight = nullptr;
    const float* conv_bias = nullptr;
    const float* a = nullptr;
    const float* d = nullptr;
    const float* dt_bias = nullptr;
    const float* norm = nullptr;
    SsmNorm order = SsmNorm::after_gate;
    float dt_min = 0, eps = 0;
    uint16_t* out = nullptr;
    uint16_t* xbc = nullptr;  // [tokens, channels] BF16
    float* dt = nullptr;      // [tokens, heads]
    float* decay = nullptr;
    float* y = nullptr;  // [tokens, inner]
    SsmStateFormat format = SsmStateFormat::f32;
    PhiloxStream stream;
    bool overlap = false;
};
cudaError_t launch_convolve(const SsmArgs& args, cudaStream_t stream);
// Computes dt and decay of every token, and the history for the next call of the convolution.
cudaError_t launch_steps(const SsmArgs& args, cudaStream_t stream);
cudaError_t launch_ssm_scan(const SsmArgs& args, cudaStream_t stream);
// The same for 16-bit states.
cudaError_t launch_narrow_scan(const SsmArgs& args, cudaStream_t stream);
cudaError_t launch_gate(const SsmArgs& args, cudaStream_t stream);
// All four steps for one token of every segment, if ssm_decodes(); xbc, dt, decay and y are not used.
bool ssm_decodes(const SsmArgs& args);
cudaError_t launch_ssm_decode(const SsmArgs& args, cudaStream_t stream);

}  // namespace nibble::cuda
