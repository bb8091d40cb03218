// A gated delta net between its products on a GPU: the operations and orders of kernels/delta_rule.h and
// model/cpu/gated_delta.cpp with Compute::bf16.
//
// Convolution, unit lengths, rule and gated norm give the bits of the CPU. decay uses the device's double exp and
// log1p, which may differ from libm's in the last place of a double. Outputs of the projections are rounded to BF16
// when read. States are FP32. Pointers are device pointers. Functions queue work and return at once.
#pragma once

#include "kernels/state_segment.h"
#include "tensor/device.h"

namespace nibble::cuda {

struct DeltaShape {
    // value_heads: a multiple of key_heads; key_dim and value_dim <= 256; value_dim: a multiple of 8; conv <= 16
    int key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv = 0;
    bool by_key_head = false;  // see GatedDeltaConfig
    bool by_channel = false;   // Kimi delta attention; as many key as value heads

    int values_per_key() const { return value_heads / key_heads; }
    int64_t keys() const { return int64_t{key_heads} * key_dim; }
    int64_t inner() const { return int64_t{value_heads} * value_dim; }
    int64_t channels() const { return 2 * keys() + inner(); }
    int padded_key_dim() const { return (key_dim + 15) / 16 * 16; }
    // A sequence's state: history [conv - 1, channels], zeros up to history_floats(), then the states of the value
    // heads, padded_key_dim() * value_dim each, in the order of delta_place(). Zero at the start.
    int64_t history_floats() const { return ((conv - 1) * channels() + 3) / 4 * 4; }
    int64_t state_floats() const { return history_floats() + int64_t{value_heads} * padded_key_dim() * value_dim; }
};
// Returns the place of row `key`, column `value` in the state of a head.
constexpr int64_t delta_place(int value_dim, int key, int value) {
    return (int64_t{key / 16} * value_dim + value) * 16 + key % 4 * 4 + key / 4 % 4;
}

struct DeltaStep {
    DeltaShape shape;
    int64_t tokens = 0;
    int segments = 0;
    int32_t longest = 0;                 // rows of the longest segment
    const StateSegment* list = nullptr;  // [segments], on the device
    const float* projected = nullptr;    // [tokens, channels + inner]: q, k, v, z
    const float* gates = nullptr;        // [tokens, 2 * value_heads]: b, a
    // Only by channel, where rows of `projected` and `gates` are `stride` floats apart and have no z and no a: the
    // inputs z of the output's gate sigmoid(z), [tokens, inner], and a, [tokens, keys].
    int64_t stride = 0;
    const float* z = nullptr;
    const float* channel_gates = nullptr;
    const float* conv_weight = nullptr;  // [conv][channels]
    const float* a = nullptr;            // [value_heads]: -exp(A_log)
    const float* dt_bias = nullptr;      // [value_heads]; by channel [keys]
    float unit_eps = 0;                  // q = q / sqrt(mean(q^2) + unit_eps) * q_scale, per head; k alike
    float q_scale = 0, k_scale = 0;
    const float* norm = nullptr;  // [value_dim]
    float eps = 0;
    std::byte* out = nullptr;        // [tokens, inner] BF16: the input of out_proj
    std::byte* workspace = nullptr;  // delta_workspace_bytes
};
int64_t delta_workspace_bytes(const DeltaShape& shape, int64_t tokens);
// Computes convolution and silu, unit lengths, decay and beta, the rule and the gated norm, and advances the states.
// With `overlap`, segments and states may be read before the previous kernels end, back to the last kernel that was
// launched without overlap: these must not write them. Error: a shape without a kernel.
Status delta_step(const DeltaStep& d, bool overlap, const Stream& stream);

}  // namespace nibble::cuda
