// A short convolution (LFM2) between its two products on a GPU: the operations and orders of model/cpu/short_conv.cpp
// with Compute::bf16 and of kernels/ssm.h, with the bits of the CPU.
//
// Outputs of in_proj are rounded to BF16 when read. Pointers are device pointers. Functions queue work and return at
// once.
#pragma once

#include "kernels/state_segment.h"
#include "tensor/device.h"

namespace nibble::cuda {

struct ShortConvStep {
    int64_t width = 0;  // channels
    int taps = 0;       // at most 16
    int64_t tokens = 0;
    int segments = 0;
    int32_t longest = 0;                 // rows of the longest segment
    const StateSegment* list = nullptr;  // [segments], on the device
    const float* projected = nullptr;    // [tokens, 3 * width]: b, g, v
    const float* weight = nullptr;       // [taps][width]
    const float* bias = nullptr;         // [width]; null: none
    std::byte* out = nullptr;            // [tokens, width] BF16: g * conv(b * v), the input of out_proj

    // Size of a sequence's state: the last taps - 1 rows of b * v, oldest first. Zero at the start.
    int64_t state_floats() const { return (taps - 1) * width; }
};
// Computes the products and the convolution, and advances the states. Error: a shape without a kernel.
Status short_conv_step(const ShortConvStep& s, bool overlap, const Stream& stream);

}  // namespace nibble::cuda
