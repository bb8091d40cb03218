// A table of presets by purpose and machine. The formats and requirements of a preset are read from its recipe; only
// the purpose is written here.
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
    double bits = 0;          // bits of a quantized weight, scales included
    bool needs_text = false;  // needs --calib or --input-scales; --weights-only drops this need unless `learns`
    bool learns = false;      // codes or scales of weights depend on text, so --calib is always required
    std::string runs_on;      // machines and engines that multiply in these formats
};

// Returns all presets in the order of the guide. Error: a built-in recipe cannot be parsed.
Result<std::vector<RecipeGuide>> recipe_guide();

}  // namespace nibble
