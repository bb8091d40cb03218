// The division of a model's blocks into spans that can be computed apart: a block that attends to the keys and values,
// or uses the chosen keys, of an earlier block is in one span with it and all blocks between.
#pragma once

#include "architecture/model_config.h"

#include <utility>
#include <vector>

namespace nibble {

// Returns [first, last) of each span, ascending.
std::vector<std::pair<int64_t, int64_t>> block_spans(const ModelConfig& config);

}  // namespace nibble
