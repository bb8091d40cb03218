// Every tensor of a model by name, with its shape and what it is for.
#pragma once

#include "architecture/model_config.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

enum class TensorRole : uint8_t {
    embedding,
    head,
    linear,       // [outputs, inputs]
    router,       // of a mixture of experts
    convolution,  // [channels, 1, taps]
    norm,
    bias,
    state,  // parameters of a state space: FP32 in checkpoints
    choice  // moves a router's choice: FP32 in checkpoints
};

struct TensorEntry {
    std::string name;
    std::vector<int64_t> shape;
    TensorRole role = TensorRole::linear;
};

// Without the layers for multi-token prediction, which have a list of their own. A tied head has no entry.
// Random weights are drawn in this order: changing it changes what a seed means.
std::vector<TensorEntry> tensor_list(const ModelConfig& model);
std::vector<TensorEntry> prediction_tensor_list(const ModelConfig& model);

}  // namespace nibble
