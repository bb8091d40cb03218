// Which preset for which purpose and machine. What a preset stores and needs is read off the recipe itself; only the
// purpose is told here.
#pragma once

#include "quant/numerics.h"
#include "quant/recipe.h"

#include <string>
#include <vector>

namespace nibble {

struct RecipeGuide {
    std::string name;     // "nvfp4"
    std::string purpose;  // "weights and inputs in four bits"
    std::string covers;   // "all linears", "MLPs and experts" ...
    Format weights = Format::none;
    ActivationFormat inputs = ActivationFormat::none;
    double bits = 0;          // of a quantized weight, its scales included
    bool needs_text = false;  // --calib (or --input-scales); --weights-only drops that need unless `learns`
    bool learns = false;      // codes or scales of weights come from text, so that there is no way without
    std::string runs_on;      // machines and engines that multiply in these formats
};

// Every preset, in the order of a reader who chooses.
Result<std::vector<RecipeGuide>> recipe_guide();

}  // namespace nibble
