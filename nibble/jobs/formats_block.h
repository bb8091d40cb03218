// One block of numbers, quantized step by step.
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

// A block in one format: the lines about its scales, the scales by name, and per number what became of it.
struct BlockWalk {
    std::string steps;
    std::vector<std::pair<std::string, float>> scales;
    std::vector<float> quotients;  // before they are rounded to an element
    std::vector<uint8_t> codes;
    std::vector<float> elements, values;

    void add(float quotient, uint8_t code, float element, float value) {
        quotients.push_back(quotient);
        codes.push_back(code);
        elements.push_back(element);
        values.push_back(value);
    }
};

// The numbers as one block (one row) of a tensor whose largest magnitude is `amax`, the numbers' own where it is not
// given. Errors: more numbers than a block has, one that is not finite, an amax below the numbers', or one for a format
// whose scales know nothing of the tensor.
Result<BlockWalk> walk_block(Format format, std::span<const float> numbers, Arithmetic arithmetic,
                             std::optional<float> amax);
// The same as text; NVFP4 with six and, beside it, with four. Errors: as walk_block().
Result<std::string> block_text(Format format, std::span<const float> numbers, Arithmetic arithmetic,
                               std::optional<float> amax);

}  // namespace nibble
