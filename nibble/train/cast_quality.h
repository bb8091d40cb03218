// How well rounded operands of training stand for what they were made of: per unit, for logs and pages.
#pragma once

#include "base/json.h"
#include "train/train_cast.h"

#include <optional>
#include <string>
#include <vector>

namespace nibble {

struct CastQuality {
    double error = 0;      // |q - x|^2 / |x|^2; 0 where x is 0
    double gain = 1;       // <x, q> / <x, x>: below 1 where rounding shrinks, 1 in the mean where it has no bias
    double zeroed = 0;     // NVFP4: share of blocks that a scale of 0 takes away
    double saturated = 0;  // NVFP4: share of elements beyond 6
};

// x [operand.rows, cols], `stride` floats from row to row: what `operand` was made of, without a rotation.
CastQuality cast_quality(const float* x, int64_t cols, int64_t stride, const CastOperand& operand);

// Of the products of one linear, or of several that read the same rows. None: not rounded, or rotated first.
struct UnitQuality {
    std::string name;
    int64_t layer = -1;
    std::optional<CastQuality> inputs, weights, gradients;  // of X W^T, and of dY W
};

Json to_json(const UnitQuality& quality);
// Error: fields of other types.
Status read_quality(const Json& json, UnitQuality& quality);

// The section of a page: the error of every unit, a table; empty without units.
std::string quality_section(const std::vector<UnitQuality>& units, int64_t step);

}  // namespace nibble
