// One block of numbers, quantized step by step.
#pragma once

#include "base/error.h"
#include "formats/arithmetic.h"
#include "formats/format.h"

#include <optional>
#include <span>
#include <string>

namespace nibble {

// The numbers as one block (one row) of a tensor whose largest magnitude is `amax`, the numbers' own where it is not
// given. NVFP4 with six and, beside it, with four. Errors: more numbers than a block has, one that is not finite, an
// amax below the numbers', or one for a format whose scales know nothing of the tensor.
Result<std::string> block_text(Format format, std::span<const float> numbers, Arithmetic arithmetic,
                               std::optional<float> amax);

}  // namespace nibble
