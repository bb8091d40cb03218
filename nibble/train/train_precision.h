// How the linears of a model multiply while it is trained: one name for a recipe, and the switches of its parts.
// docs/training.md has the table of what each recipe does to the three products of a linear.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace nibble {

enum class TrainRecipe : uint8_t { fp32, bf16 };

std::string_view train_recipe_name(TrainRecipe recipe);
// Also the names that MaxText's users know. Error: an unknown name, with the choices.
Result<TrainRecipe> train_recipe_from_name(std::string_view name);

struct TrainPrecision {
    TrainRecipe recipe = TrainRecipe::bf16;
};

}  // namespace nibble
