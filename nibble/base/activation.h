// The activation functions of feed-forward networks, as descriptions of models name them and as kernels compute them
// (kernels/elementwise.h has the formulas).
#pragma once

#include <cstdint>

namespace nibble {

enum class Activation : uint8_t { silu, gelu_tanh, relu2 };

// A gated unit whose halves are bounded: a(gate) * (clamp(up, -limit, limit) + up_offset), with
//   a(g) = h / (1 + exp(-alpha h)), h = min(g, limit)    (gpt_oss), or
//   a(g) = min(g / (1 + exp(-alpha g)), limit)           where the activation comes first (step3p5).
struct ClampedGlu {
    float limit = 0;
    float alpha = 1.0f, up_offset = 0;
    bool activation_first = false;
    bool operator==(const ClampedGlu&) const = default;
};

}  // namespace nibble
