// The output of `nibble formats --json`. Arguments and errors: see formats_text.h.
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "formats/arithmetic.h"

#include <optional>
#include <span>
#include <string_view>

namespace nibble {

// Returns {"elements": [...], "blocks": [...]}.
Json overview_json();
// Returns an element format with all its values if it has up to eight bits ("values", by code), or a block format with
// its rule.
Result<Json> format_json(std::string_view name);
// Returns [{"number", "formats": {name: {"code", "value", "error"}}}].
Json numbers_json(std::span<const float> numbers);
// Returns {"format", "scales": {...}, "numbers": [{"number", "quotient", "element", "code", "value", "error"}]}.
Result<Json> quantized_json(std::string_view name, std::span<const float> numbers, Arithmetic arithmetic,
                            std::optional<float> amax);

}  // namespace nibble
