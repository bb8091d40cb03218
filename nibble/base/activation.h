// The activation functions of feed-forward networks, as descriptions of models name them and as kernels compute them
// (kernels/elementwise.h has the formulas).
#pragma once

#include <cstdint>

namespace nibble {

enum class Activation : uint8_t { silu, gelu_tanh, relu2 };

}  // namespace nibble
