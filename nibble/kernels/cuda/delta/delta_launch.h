// Kernels called by kernels/cuda/delta/delta.cpp, which checks the arguments.
#pragma once

#include "kernels/state_segment.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

struct DeltaArgs {
    int key_heads, value_heads, key_dim, value_dim, conv;
    int per_key;     // value heads of a key head
    int padded_key;  // key_dim, rounded up to a multiple of 16
    int keys, inner, channels;
    int64_t history;  // floats of a sequence's state before those of the value heads
    bool by_key_head, by_channel;
    int segments;
    int64_t tokens, longest;
    const StateSegment* list;
    const float *projected, *gates, *conv_weight, *a, *dt_bias, *norm;
    int64_t stride, gates_stride;    // floats from row to row of projected and gates
    const float *z, *channel_gates;  // see DeltaStep
    float unit_eps, q_scale, k_scale, eps;
    uint16_t* out;
    // Workspace. q and k: of unit length, [tokens][key_heads][padded_key], elements in the order of key_place().
    float *q, *k;
    float2* steps;    // [tokens][value_heads]: decay (not by channel), beta
    float* decays;    // by channel: in the places of k
    uint16_t *v, *y;  // [tokens][inner]
    bool overlap;
};
// Convolution, silu, unit lengths, decay and beta of every token.
cudaError_t launch_delta_inputs(const DeltaArgs& args, cudaStream_t stream);
// The rule, and the history for the next call of the convolution.
cudaError_t launch_delta_rule(const DeltaArgs& args, cudaStream_t stream);
cudaError_t launch_delta_gate(const DeltaArgs& args, cudaStream_t stream);
// All of it for one token of every segment, if delta_decodes(); the workspace is not used.
bool delta_decodes(const DeltaArgs& args);
cudaError_t launch_delta_decode(const DeltaArgs& args, cudaStream_t stream);

}  // namespace nibble::cuda
