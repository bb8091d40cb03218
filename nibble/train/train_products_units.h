// What train_products*.cpp keep of every linear of a model: nobody else's.
#pragma once

#include "model/gradients.h"
#include "train/train_products.h"

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace nibble {

struct TrainProducts::Unit {
    std::string name;
    uint32_t number = 0;
    int64_t layer = -1;
    std::vector<size_t> parts;       // parameter ids of the weights
    std::vector<std::string> names;  // of the linears
    int64_t rows = 0, cols = 0;
    double share = 1;  // token_share()
    UnitRules early, late;
    std::array<DelayedScale, 3> delayed;  // inputs, weights, gradients
    DelayedScale* inputs = nullptr;       // of the first unit that has the same one
    InputDirections directions;
    std::optional<CastQuality> inputs_seen, weights_seen, gradients_seen;

    uint64_t version = 0, epoch = 0;  // that the copies below are of
    bool has_forward = false, has_back = false;
    PackedMatrix transposed;  // of weights that are not quantized
    PackedOperand forward, back, rank_term;
    std::optional<PackedMatrix> served;  // instead of `forward`: NVFP4 weights as the engine has them
};

struct TrainProducts::Units {
    std::vector<std::unique_ptr<Unit>> list;
    std::unordered_map<std::string, Unit*> by_name;  // of the first linear
    std::unordered_map<std::string, Unit*> inputs;   // by input_group()
};

}  // namespace nibble
