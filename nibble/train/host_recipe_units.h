// Private data of host_recipe*.cpp: the linears of a model.
#pragma once

#include "model/gradients.h"
#include "train/host_recipe.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

struct HostRecipe::Unit {
    std::string name;
    uint32_t number = 0;
    int64_t layer = -1;
    std::vector<size_t> parts;       // parameter ids of the weights
    std::vector<std::string> names;  // names of the linears
    int64_t rows = 0, cols = 0;
    double share = 1;  // token_share()
    UnitRules early, late;
    std::array<DelayedScale, 3> delayed;  // inputs, weights, gradients
    DelayedScale* inputs = nullptr;       // scale of the first unit with the same inputs
    InputDirections directions;
    std::optional<CastQuality> inputs_seen, weights_seen, gradients_seen;

    uint64_t version = 0, epoch = 0;  // versions of the copies below
    bool has_forward = false, has_back = false;
    PackedMatrix transposed;  // for weights that are not quantized
    PackedOperand forward, back, rank_term;
    std::optional<PackedMatrix> served;  // replaces `forward`: NVFP4 weights in the engine's form
};

struct HostRecipe::Units {
    std::vector<std::unique_ptr<Unit>> list;
    std::unordered_map<std::string, Unit*> by_name;  // by name of the first linear
    std::unordered_map<std::string, Unit*> inputs;   // by input_group()
};

}  // namespace nibble
