// Mamba-2 between its two products on a GPU: the operations and orders of kernels/ssm.h and model/cpu/mamba.cpp.
//
// Convolution, scan and gated norm give the bits of the CPU versions. dt and decay use the device's double exp and
// log1p, which may differ from libm's in the last place of a double (once in 10^8 results after rounding to float).
// Outputs of in_proj are rounded to BF16 when read. States are stored in SsmStateFormat and rounded after every token
// with the draws of kernels/ssm_rows.h. Pointers are device pointers. Functions queue work and return at once.
#pragma once

#include "kernels/ssm.h"
#include "kernels/state_segment.h"
#include "tensor/device.h"

namespace nibble::cuda {

struct MambaShape {
    int heads = 0, head_dim = 0, groups = 0, state = 0, conv = 0;  // head_dim <= 1024, conv <= 16
    int64_t inner() const { return int64_t{heads} * head_dim; }
    int64_t channels() const { return inner() + int64_t{2} * groups * state; }
    SsmStateFormat format = SsmStateFormat::f32;
    // Size of a sequence's state in floats: history [conv - 1, channels], then states [heads, state, head_dim] in
    // `format`. Zero at the start.
    int64_t state_floats() const {
        return (conv - 1) * channels() + (int64_t{heads} * state * head_dim * ssm_state_bytes(format) + 3) / 4;
    }
};
struct MambaStep {
    MambaShape shape;
    int64_t tokens = 0;
    int segments = 0;
    int32_t longest = 0;                 // rows of the longest segment
    const StateSegment* list = nullptr;  // [segments], on the device
    const float* projected = nullptr;    // [tokens, inner + channels + heads]: z, x B C, dt
    const float* conv_weight = nullptr;  // [conv][channels]
    const float* conv_bias = nullptr;    // [channels]; null: none
    const float* a = nullptr;            // [heads]: -exp(A_log)
    const float* d = nullptr;
    const float* dt_bias = nullptr;
    float dt_min = 0.0f;
    SsmNorm order = SsmNorm::after_gate;
    const float* norm = nullptr;  // [inner]; not read with SsmNorm::none
    float eps = 0;
    PhiloxStream stream;             // fp16_stochastic: (seed, layer), as in SsmScan
    std::byte* out = nullptr;        // [tokens, inner] BF16: gated and normalized input of out_proj
    std::byte* workspace = nullptr;  // mamba_workspace_bytes
};
int64_t mamba_workspace_bytes(const MambaShape& shape, int64_t tokens);
// Computes convolution and silu, dt and decay, scan and gated group norm, and advances the states. With `overlap`,
// segments and states may be read before the previous kernels end, back to the last kernel that was launched without
// overlap: these must not write them.
Status mamba_step(const MambaStep& m, bool overlap, const Stream& stream);

}  // namespace nibble::cuda
