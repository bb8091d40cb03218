// Weights that config.json requires and a checkpoint does not have.
#pragma once

#include "checkpoint/checkpoint.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

struct MissingWeights {
    std::vector<std::string> names;  // in the order of the model
    int64_t required = 0;            // by config.json; 0: the engine does not describe this model

    // "12 of 290 weights that config.json requires are missing: 'model.layers.1.mlp.up_proj.weight', ... and 9 more";
    // empty: none is missing.
    std::string text() const;
};

// Compares the names of the checkpoint with those that tensor_list() gives for its config.json. A tied head needs no
// tensor. Layers for multi-token prediction are complete or absent. Experts in a stack that cannot be split count as
// present. Models that the engine does not run have no list of required weights.
MissingWeights find_missing_weights(const Checkpoint& checkpoint);

}  // namespace nibble
