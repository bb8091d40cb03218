#pragma once

#include "architecture/model_config.h"

#include <vector>

namespace nibble {

// Returns dims / 2 frequencies: the angle of pair i at position p is p * frequency[i]. FP32, as in transformers.
std::vector<float> rope_frequencies(const Rope& rope);

}  // namespace nibble
