// Prepares the training kernels once per device: the backward pass of attention and experts, and losses.
#pragma once

#include "tensor/device.h"

namespace nibble::cuda {

Status prepare_training(const DeviceInfo& device);

}  // namespace nibble::cuda
