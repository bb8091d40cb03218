// The precision of a model's linears in training: a named recipe and switches for its parts. docs/topics/training.md
// has a table of the three products of a linear under each recipe.
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "io/schema.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace nibble {

enum class TrainRecipe : uint8_t {
    fp32,
    bf16,
    fp8,           // per tensor, scaled by its current maximum; gradients E5M2
    fp8_delayed,   // per tensor, scaled by the maxima of earlier steps
    fp8_block,     // blocks of 1 x 128 and 128 x 128, E4M3
    mxfp8,         // blocks of 1 x 32
    nvfp4,         // TransformerEngine's recipe
    nibble_nvfp4,  // MLPs: NVFP4 with a rank-r term; other linears: FP8 forward; MS-EDEN backward
};

enum class TrainScope : uint8_t { mlp, all };
enum class TrainPasses : uint8_t { both, forward, backward };

struct TrainPrecision {
    TrainRecipe recipe = TrainRecipe::bf16;
    std::string_view name;                    // name under which it was requested; empty: the recipe's own
    TrainScope scope = TrainScope::all;       // linears: only those of MLPs and experts, or all of a block
    TrainPasses passes = TrainPasses::both;   // products that are quantized; those of the other pass are as in bf16
    int64_t first_bf16 = 0, last_bf16 = 0;    // number of layers at each end that stay BF16
    std::vector<int64_t> bf16_layers;         // further layers that stay BF16, by number
    bool rotate = true;                       // nvfp4: Hadamard transform of both operands of the weight gradient
    bool stochastic = true;                   // nvfp4: stochastic rounding of gradients
    bool square = true;                       // nvfp4: weights in 16 x 16
    bool four_over_six = false;               // nvfp4, nibble_nvfp4: weights (and inputs) use the better of two scales
    bool row_scaled = false;                  // NVFP4 inputs of forward products: one scale per row
    bool weights_only = false;                // nvfp4: W4A16; everything else BF16 or FP32
    bool stored_inputs = false;               // nvfp4: W4A4 as in serving, inputs under a stored input_scale
    bool power_of_two = false;                // fp8_block: scales rounded to powers of two
    int64_t amax_history = 1024;              // fp8_delayed, stored_inputs: number of steps
    int64_t rank = 16;                        // nibble_nvfp4: 0: no rank-r term
    bool emulate = false;                     // computes FP8 products of a GPU in BF16, with the CPU's sums
    bool eden = true;                         // nibble_nvfp4: MS-EDEN backward; false: backward as in nvfp4
    bool attention_fp8 = true;                // nibble_nvfp4: false: all linears are treated like those of MLPs
    std::optional<TrainRecipe> late_forward;  // precision of the forward products in the last steps: bf16 or fp8_block
    double late_fraction = 0.18;              // share of the steps
    int64_t late_step = -1;                   // first of these steps, instead of the share
};

std::string_view train_recipe_name(TrainRecipe recipe);
// Returns the name for messages: the one under which the precision was requested.
std::string_view train_precision_name(const TrainPrecision& precision);
// Returns the precision of a name, including names from MaxText (te_nvfp4_no_rht). Error: an unknown name, with the
// choices.
Result<TrainPrecision> train_precision_from_name(std::string_view name);
// The keys of a precision: `recipe` and its switches.
const Schema<TrainPrecision>& train_precision_schema();
// Returns the recipe and those of its switches that have an effect.
Json train_precision_json(const TrainPrecision& precision);

// Returns an error for a recipe that no GPU trains with.
Status check_device_precision(const TrainPrecision& precision);

}  // namespace nibble
