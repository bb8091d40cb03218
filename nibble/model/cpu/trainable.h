// Which models have a backward pass. Calibration without gradients needs none.
#pragma once

#include "architecture/model_config.h"
#include "base/error.h"

namespace nibble {

// Error: names the first feature of the block, or of the model, without a backward pass.
Status check_backward(const BlockConfig& block);
Status check_backward(const ModelConfig& model);

}  // namespace nibble
