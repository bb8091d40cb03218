// How the linears of a model multiply while it is trained: one name for a recipe, and the switches of its parts.
// docs/training.md has the table of what each recipe does to the three products of a linear.
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
    fp8,           // per tensor, scales of the tensor in hand; gradients E5M2
    fp8_delayed,   // the same, scales of the steps before
    fp8_block,     // 1 x 128 and 128 x 128, E4M3
    mxfp8,         // 1 x 32
    nvfp4,         // TransformerEngine's
    nibble_nvfp4,  // N1 and N2: MLP NVFP4 with a rank-r term, all else FP8 forward, MS-EDEN backward
};

enum class TrainScope : uint8_t { mlp, all };
enum class TrainPasses : uint8_t { both, forward, backward };

struct TrainPrecision {
    TrainRecipe recipe = TrainRecipe::bf16;
    std::string_view name;                   // that it was asked for by; empty: the recipe's own
    TrainScope scope = TrainScope::all;      // which linears of a block: those of MLPs and experts, or all
    TrainPasses passes = TrainPasses::both;  // which of their products; those of the other pass are as in bf16
    int64_t first_bf16 = 0, last_bf16 = 0;   // layers at both ends that stay BF16
    std::vector<int64_t> bf16_layers;        // others, by number
    bool rotate = true;                      // nvfp4: Hadamard transform of both operands of the weight gradient
    bool stochastic = true;                  // nvfp4: stochastic rounding of gradients
    bool square = true;                      // nvfp4: weights in 16 x 16
    bool four_over_six = false;              // nvfp4, nibble_nvfp4: weights (and inputs) by the better of two scales
    bool row_scaled = false;                 // NVFP4 inputs of forward products: a scale of each row
    bool weights_only = false;               // nvfp4: W4A16, all else BF16 or FP32
    bool stored_inputs = false;              // nvfp4: W4A4 as a server multiplies it, inputs under a stored input_scale
    bool power_of_two = false;               // fp8_block: scales rounded to powers of two
    int64_t amax_history = 1024;             // fp8_delayed, stored_inputs: steps
    int64_t rank = 16;                       // nibble_nvfp4: 0: none
    bool emulate = false;                    // FP8 products of a GPU in BF16, with the CPU's sums
    bool eden = true;                        // nibble_nvfp4: MS-EDEN backward, else as nvfp4
    bool attention_fp8 = true;               // nibble_nvfp4: else all linears are as those of MLPs
    std::optional<TrainRecipe> late_forward;  // bf16 or fp8_block: the forward products of the last steps
    double late_fraction = 0.18;              // how many of them
    int64_t late_step = -1;                   // instead: the first of them
};

std::string_view train_recipe_name(TrainRecipe recipe);
// What to call it in a message: the name that it was asked for by.
std::string_view train_precision_name(const TrainPrecision& precision);
// The precision of a name, also of those that MaxText's users know (te_nvfp4_no_rht). Error: an unknown name, with the
// choices.
Result<TrainPrecision> train_precision_from_name(std::string_view name);
// The keys of a precision: `recipe` and its switches.
const Schema<TrainPrecision>& train_precision_schema();
// The recipe and those of its switches that have an effect.
Json train_precision_json(const TrainPrecision& precision);

// Returns an error for a recipe that no GPU trains with.
Status check_device_precision(const TrainPrecision& precision);

}  // namespace nibble
