// The texts of `nibble formats`.
#pragma once

#include "base/error.h"
#include "formats/arithmetic.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

// Returns true if the name is an element format (e2m1, e4m3, e5m2, e8m0, bf16, fp16, fp32) or a block format
// (formats/format.h).
bool is_format_name(std::string_view name);
std::string format_choices();

std::string overview_text();
// Returns the values of an element format, or layout and rules of a block format. Error: an unknown name.
Result<std::string> format_text(std::string_view name);
// Returns bits, value and rounding error of each number in every element format.
std::string numbers_text(std::span<const float> numbers);
// Returns the numbers in one format: each separately for element formats, as one block (one row) for block formats.
// amax: largest magnitude of the whole tensor, if it exceeds these numbers. Errors: an unknown name, those of
// trace_block().
Result<std::string> quantized_text(std::string_view name, std::span<const float> numbers, Arithmetic arithmetic,
                                   std::optional<float> amax = {});

}  // namespace nibble
