// A sample of rows of a product's operand, with everything that their rounding depends on. A GPU trainer copies samples
// in watched steps. The host repeats the rounding, with equal results (train/train_cast.h), and measures its error.
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
    // largest magnitude of the whole tensor; 0: the sample is the whole tensor, or no scale is per tensor
    float largest = 0;
    std::optional<float> given;  // the argument of cast_rows()
};

CastQuality measure(const OperandSample& sample, ThreadPool& pool);

// Samples of one unit. Absent: not rounded, rotated first, or not sampled.
struct UnitSample {
    std::optional<OperandSample> inputs, weights, gradients;
};

}  // namespace nibble
