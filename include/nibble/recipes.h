// The built-in recipes of quantize().
#pragma once

#include "nibble/error.h"
#include "nibble/report.h"

#include <string>
#include <vector>

namespace nibble {

// The names, as QuantizeOptions::recipe takes them.
std::vector<std::string> recipe_names();

// Purpose, formats, bits per weight, needs and machines of every recipe.
Result<JobReport> describe_recipes();

}  // namespace nibble
