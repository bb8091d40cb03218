#include "train/train_precision.h"

#include <array>
#include <string>

namespace nibble {
namespace {

struct RecipeName {
    std::string_view name;
    TrainRecipe recipe;
};
// The first name of a recipe is its own.
constexpr std::array recipe_names{RecipeName{"fp32", TrainRecipe::fp32}, RecipeName{"bf16", TrainRecipe::bf16}};

}  // namespace

std::string_view train_recipe_name(TrainRecipe recipe) {
    for (const RecipeName& r : recipe_names)
        if (r.recipe == recipe) return r.name;
    return "?";
}

Result<TrainRecipe> train_recipe_from_name(std::string_view name) {
    std::string choices;
    for (const RecipeName& r : recipe_names) {
        if (r.name == name) return r.recipe;
        choices += (choices.empty() ? "" : ", ") + std::string(r.name);
    }
    return fail("unknown precision '{}'; choices: {}", name, choices);
}

}  // namespace nibble
