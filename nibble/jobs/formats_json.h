// What `nibble formats` says, for programs (--json). Arguments and errors as in formats_text.h.
#pragma once

#include "base/error.h"
#include "base/json.h"
#include "formats/arithmetic.h"

#include <optional>
#include <span>
#include <string_view>

namespace nibble {

// {"elements": [...], "blocks": [...]}
Json overview_json();
// An element format with all its values up to eight bits ("values", by code), or a block format with its rule.
Result<Json> format_json(std::string_view name);
// [{"number", "formats": {name: {"code", "value", "error"}}}]
Json numbers_json(std::span<const float> numbers);
// {"format", "scales": {...}, "numbers": [{"number", "quotient", "element", "code", "value", "error"}]}
Result<Json> quantized_json(std::string_view name, std::span<const float> numbers, Arithmetic arithmetic,
                            std::optional<float> amax);

}  // namespace nibble
