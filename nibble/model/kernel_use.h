// The kernels that a layer uses, described in words: rows of the table that `nibble inspect MODEL --device cuda
// --kernels` prints.
#pragma once

#include "kernels/kernel_choice.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// One product of a block, or its attention.
struct KernelUse {
    std::vector<std::string> modules;  // linears that run as one product; for experts: those of the first expert
    std::string weights, inputs;       // formats ("nvfp4", "bf16"); for attention: empty, and the format of the cache
    int64_t out_width = 0, in_width = 0;  // size of a product: [out, in]
    cuda::KernelChoice choice;
};
// Notes that the first product of a mixer, uses[at], computes the norm.
inline void note_norm_inside(std::vector<KernelUse>& uses, size_t at) {
    uses[at].choice.why += "; computes the preceding norm too";
}

struct LayerKernels {
    std::string prefix;  // prefix of the mixer's tensors: "model.layers.3.self_attn"; or "lm_head"
    int layer = -1;      // index in the checkpoint's names; -1: none
    std::vector<KernelUse> uses;
};

struct KernelTable {
    std::string device;  // name of the GPU
    int64_t tokens = 0;  // tokens of the step
    std::vector<LayerKernels> layers;
};

}  // namespace nibble
