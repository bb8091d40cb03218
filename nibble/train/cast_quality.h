// Measures how well the rounded operands of training represent their sources, per unit, for logs and pages.
#pragma once

#include "base/json.h"
#include "train/train_cast.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct CastQuality {
    // q - x|^2 / |x|^2; 0 if x is 0
    double error = 0;
    double gain = 1;       // <x, q> / <x, x>: below 1 if rounding shrinks x, 1 on average if rounding is unbiased
    double zeroed = 0;     // NVFP4: share of blocks that become zero because their scale is 0
    double saturated = 0;  // NVFP4: share of elements beyond the largest code, 6
};

// Compares `operand` with its source x [operand.rows, cols], `stride` floats from row to row, which was not rotated.
CastQuality cast_quality(const float* x, int64_t cols, int64_t stride, const CastOperand& operand);

// Quality of the operands of a linear, or of several that read the same rows. Absent: not rounded, or rotated first.
struct UnitQuality {
    std::string name;
    int64_t layer = -1;
    std::optional<CastQuality> inputs, weights, gradients;  // inputs and weights of X W^T; gradients of dY W
};

Json to_json(const UnitQuality& quality);
// Error: fields of other types.
Status read_quality(const Json& json, UnitQuality& quality);

}  // namespace nibble
