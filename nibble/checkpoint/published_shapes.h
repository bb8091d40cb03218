// The configurations of published models by the names that `nibble bench model --shape` accepts. Sizes only: no
// weights.
#pragma once

#include "base/error.h"
#include "base/json.h"

#include <string_view>

namespace nibble {

// Returns the config.json of a shape: "llama-8b", "gpt-oss-20b" ... Error: an unknown shape, with the choices.
Result<Json> shape_config(std::string_view shape);

}  // namespace nibble
