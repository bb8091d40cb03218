// Lists every tensor of a model with name, shape and role.
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
    router,       // gate of a mixture of experts, or another linear that stays unquantized
    convolution,  // [channels, 1, taps]
    norm,
    plain_norm,  // multiplies by w for every value of ModelConfig::norm_plus_one
    bias,
    state,  // parameters of a state space model: FP32 in checkpoints
    choice  // bias of a router's choice: FP32 in checkpoints
};

struct TensorEntry {
    std::string name;
    std::vector<int64_t> shape;
    TensorRole role = TensorRole::linear;
    int64_t experts = 0;  // as in CheckpointTensor
};

// Returns the name of a norm's bias for the name of its weight.
std::string bias_of_norm(std::string weight);

// Returns the tensors without those of layers for multi-token prediction, which have a separate list. A tied head has
// no entry. Random weights are drawn in this order, so changing it changes the weights of a seed.
std::vector<TensorEntry> tensor_list(const ModelConfig& model);
std::vector<TensorEntry> prediction_tensor_list(const ModelConfig& model);

}  // namespace nibble
