// Rows of what a product of training rounds, and all that their rounding depends on: a GPU copies them in a step that
// is watched, and the host rounds them again to the same numbers (train/train_cast.h) and measures.
#pragma once

#include "train/cast_quality.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace nibble {

struct OperandSample {
    int64_t rows = 0, cols = 0;    // the first rows of the tensor
    std::vector<uint16_t> values;  // [rows, cols] BF16
    CastRule rule;
    CastRandom random;
    float largest = 0;           // magnitude of the whole tensor; 0: these rows are all, or no scale is a tensor's
    std::optional<float> given;  // as cast_rows() has it
};

CastQuality measure(const OperandSample& sample, ThreadPool& pool);

// Of one unit. none: not rounded, rotated first, or not seen.
struct UnitSample {
    std::optional<OperandSample> inputs, weights, gradients;
};

}  // namespace nibble
