// Which kernels a layer takes, in words: rows of the table that `nibble inspect MODEL --device cuda --kernels` prints.
#pragma once

#include "kernels/kernel_choice.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

// One product of a block, or its attention.
struct KernelUse {
    std::vector<std::string> modules;     // the linears that are one product; experts: of the first one
    std::string weights, inputs;          // formats: "nvfp4", "bf16"; of attention: empty, and the cache's
    int64_t out_width = 0, in_width = 0;  // of a product: [out, in]
    cuda::KernelChoice choice;
};
// Of the use at `at`, the first product of a mixer.
inline void note_norm_inside(std::vector<KernelUse>& uses, size_t at) {
    uses[at].choice.why += "; makes the norm before it";
}

struct LayerKernels {
    std::string prefix;  // of the mixer's tensors: "model.layers.3.self_attn"; "lm_head"
    int layer = -1;      // in the checkpoint's names; -1: none
    std::vector<KernelUse> uses;
};

struct KernelTable {
    std::string device;  // the GPU's name
    int64_t tokens = 0;  // of the step
    std::vector<LayerKernels> layers;
};

}  // namespace nibble
