// What a recipe does to one unit of linears: how the operands of its three products are rounded.
#pragma once

#include "architecture/model_config.h"
#include "train/train_cast.h"
#include "train/train_precision.h"

#include <string>

namespace nibble {

struct UnitPlace {
    int64_t layer = 0, layers = 0;
    bool mlp = false;  // of an MLP or an expert
};

struct UnitRules {
    bool quantized = false;   // false: BF16 (or FP32) products
    CastRule x, w;            // forward
    CastRule dy, w_back;      // input gradient; w_back is the transpose of w where that is the same rounding
    CastRule dy_t, x_t;       // weight gradient, both along tokens
    bool eden = false;        // instead: MS-EDEN of all four operands of the way back
    bool plain_back = false;  // instead: the way back of bf16, over the weights and inputs as they were before rounding
    int64_t rank = 0;         // columns of the BF16 term over the strongest input directions
    bool emulate = false;     // on a GPU BF16 products of the same numbers, where FP8 tensor cores could multiply
    bool delayed = false;     // scales of fp8, or the input_scale of stored inputs, from the steps before
    bool engine = false;      // forward: the engine's own product over the weights as checkpoints store them
};

// `late`: in the last part of the steps, where late_forward holds.
UnitRules unit_rules(const TrainPrecision& precision, const UnitPlace& place, bool late);
// Whether products of it have a term along directions of their inputs.
bool has_directions(const TrainPrecision& precision);
// Whether a step of `steps` (0: of no known number) is in that part.
bool late_phase(const TrainPrecision& precision, int64_t step, int64_t steps);
// Which operands of a unit's three products have FP4 values, and how many products have two of them.
struct Fp4Use {
    int products = 0, weights = 0, inputs = 0, gradients = 0;
};
Fp4Use fp4_use(const UnitRules& rules);
// Whether a row's forward product depends on other rows: the scale of its input is that of the whole tensor.
bool sees_neighbours(const UnitRules& rules);
// Units whose stored inputs share one input_scale have one group. `name`: of the unit's first linear.
std::string input_group(const std::string& name);
// "NVFP4 1x16", "E4M3 128x128" ... of one operand.
std::string rule_text(const CastRule& rule);

}  // namespace nibble
