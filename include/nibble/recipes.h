// The built-in recipes of quantize().
#pragma once

#include "nibble/error.h"
#include "nibble/report.h"

#include <string>
#include <vector>

namespace nibble {

// Returns the names for QuantizeOptions::recipe.
std::vector<std::string> recipe_names();

// Describes purpose, formats, bits per weight, requirements and machines of every recipe. Error: a built-in recipe
// cannot be parsed.
Result<JobReport> describe_recipes();

}  // namespace nibble
