// The rounding rules of one unit of linears under a recipe, for the operands of its three products.
#pragma once

#include "architecture/model_config.h"
#include "train/train_cast.h"
#include "train/train_precision.h"

#include <string>

namespace nibble {

struct UnitPlace {
    int64_t layer = 0, layers = 0;
    bool mlp = false;  // in an MLP or an expert
};

struct UnitRules {
    bool quantized = false;   // false: BF16 (or FP32) products
    CastRule x, w;            // forward product
    CastRule dy, w_back;      // input gradient; w_back is the transpose of w if the rounding is the same
    CastRule dy_t, x_t;       // weight gradient, both along tokens
    bool eden = false;        // replaces them: MS-EDEN for all four operands of the backward pass
    bool plain_back = false;  // replaces them: backward pass of bf16, over weights and inputs before rounding
    int64_t rank = 0;         // rank of the BF16 term over the strongest input directions
    bool emulate = false;     // GPU: computes in BF16 even where FP8 tensor cores could compute
    bool delayed = false;     // scales of fp8, or the input_scale of stored inputs, come from earlier steps
    bool engine = false;      // forward product by the engine, over the weights as stored in checkpoints
};

// Returns the rules of a unit. `late`: for the last steps, where late_forward applies.
UnitRules unit_rules(const TrainPrecision& precision, const UnitPlace& place, bool late);
// Returns true if products have a term over directions of their inputs.
bool has_directions(const TrainPrecision& precision);
// Returns true if a step of `steps` (0: unknown) is in that last part.
bool late_phase(const TrainPrecision& precision, int64_t step, int64_t steps);
// FP4 operands of a unit's three products, and the number of products with two of them.
struct Fp4Use {
    int products = 0, weights = 0, inputs = 0, gradients = 0;
};
Fp4Use fp4_use(const UnitRules& rules);
// Returns true if a row's forward product depends on other rows, because its input has one scale per tensor.
bool sees_neighbours(const UnitRules& rules);
// Returns the group of units whose stored inputs share one input_scale. `name`: of the unit's first linear.
std::string input_group(const std::string& name);
// Returns the name of an operand's format, such as "NVFP4 1x16" or "E4M3 128x128".
std::string rule_text(const CastRule& rule);

}  // namespace nibble
