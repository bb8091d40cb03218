// Quantizes one block of numbers and describes each step.
#pragma once

#include "base/error.h"
#include "formats/arithmetic.h"
#include "formats/format.h"

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nibble {

// A block in one format: text about its scales, the scales by name, and the results per number.
struct BlockTrace {
    std::string steps;
    std::vector<std::pair<std::string, float>> scales;
    std::vector<float> quotients;  // values before they are rounded to elements
    std::vector<uint8_t> codes;
    std::vector<float> elements, values;

    void add(float quotient, uint8_t code, float element, float value) {
        quotients.push_back(quotient);
        codes.push_back(code);
        elements.push_back(element);
        values.push_back(value);
    }
};

// Quantizes the numbers as one block (one row) of a tensor whose largest magnitude is `amax`; default: that of the
// numbers. Errors: more numbers than a block has, a number that is not finite, an amax below the numbers', an amax for
// a format without tensor scale.
Result<BlockTrace> trace_block(Format format, std::span<const float> numbers, Arithmetic arithmetic,
                               std::optional<float> amax);
// Returns the result as text; for NVFP4, with both six and four as the largest element. Errors: see trace_block().
Result<std::string> block_text(Format format, std::span<const float> numbers, Arithmetic arithmetic,
                               std::optional<float> amax);

}  // namespace nibble
