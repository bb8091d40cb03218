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
    state,   // parameters of a state space model: FP32 in checkpoints
    choice,  // bias of a router's choice: FP32 in checkpoints
    hyper,   // parameters of hyper-connections: FP32 in checkpoints
    table    // integers
};

// Consecutive rows of a tensor which ranks divide in one way.
struct RowSegment {
    int64_t rows = 0;
    enum class Division : uint8_t {
        none,    // every rank has all rows
        equal,   // every rank has the same number of parts
        copied,  // split like `equal`; with more ranks than parts, several ranks have the same part
        even,    // numbers of parts differ by at most one
        expert,  // all rows are on the rank that has part number `part` of an even division
    } division = Division::none;
    int64_t parts = 1;        // equal runs of rows that stay together: heads, experts, 16 rows ...
    std::string_view what{};  // the parts in messages: "attention heads"
    int64_t part = 0;         // expert: number of the expert
};

// Rows that any rank may have: in runs of 16, as kernels take them, where their number allows it.
RowSegment rows_in_runs(int64_t rows);

struct TensorEntry {
    std::string name;
    std::vector<int64_t> shape;
    TensorRole role = TensorRole::linear;
    int64_t experts = 0;  // as in CheckpointTensor
    std::vector<RowSegment>
        segments{};  // segments of the first dimension (of [experts * rows, columns] for a stack of experts)
};

// Returns the name of a norm's bias for the name of its weight.
std::string bias_of_norm(std::string weight);

// Returns the tensors without those of layers for multi-token prediction, which have a separate list. A tied head has
// no entry. Random weights are drawn in this order, so changing it changes the weights of a seed.
std::vector<TensorEntry> tensor_list(const ModelConfig& model);
std::vector<TensorEntry> prediction_tensor_list(const ModelConfig& model);

}  // namespace nibble
