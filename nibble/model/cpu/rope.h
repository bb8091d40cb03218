#pragma once

#include "architecture/model_config.h"

#include <vector>

namespace nibble {

// The angle of pair i at position p is p * frequency[i]; dims / 2 values, FP32 as transformers has them.
std::vector<float> rope_frequencies(const Rope& rope);

}  // namespace nibble
