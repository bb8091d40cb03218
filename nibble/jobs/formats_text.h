// The texts of `nibble formats`, as strings so that tests can read them.
#pragma once

#include "base/error.h"
#include "formats/arithmetic.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace nibble {

// Element formats (e2m1, e4m3, e5m2, e8m0, bf16, fp16, fp32) and block formats (formats/format.h).
bool is_format_name(std::string_view name);
std::string format_choices();

std::string overview_text();
// The values of an element format; layout and rules of a block format.
Result<std::string> format_text(std::string_view name);
// Bits, value and rounding error of each number in every element format.
std::string numbers_text(std::span<const float> numbers);
// The numbers in one format: per number for element formats, as one block (one row) for block formats.
// amax: of the whole tensor, where it is more than these numbers.
Result<std::string> quantized_text(std::string_view name, std::span<const float> numbers, Arithmetic arithmetic,
                                   std::optional<float> amax = {});

}  // namespace nibble
