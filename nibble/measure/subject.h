// The model that `nibble bench model` and `nibble bench throughput` measure: a checkpoint, or a published model's shape
// with random weights.
#pragma once

#include "checkpoint/random_checkpoint.h"

#include <memory>
#include <string>

namespace nibble {

struct BenchSubject {
    std::string path;    // folder or .gguf file; unused if `shape` is not empty
    RandomModel random;  // used if `shape` is not empty

    // inputs: quantizes the inputs of a shape as is usual for its format. prediction: includes its layers for
    // multi-token prediction.
    Result<std::unique_ptr<Checkpoint>> open(bool inputs, bool prediction) const;
    std::string name() const;
};

}  // namespace nibble
