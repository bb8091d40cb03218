// Two arithmetic profiles for scales. To divide a tensor by a Python number, PyTorch on a CPU uses one correctly
// rounded division; on CUDA it multiplies by the reciprocal, rounded to FP32 first. Model Optimizer's published
// checkpoints were exported on GPUs: `reciprocal` reproduces their bytes and is nibble's default. `true_division`
// reproduces its CPU exports. Divisions by a tensor (element quotients, dynamic block scales) are true divisions in
// both.
#pragma once

#include "base/host_device.h"

#include <cstdint>

namespace nibble {

enum class Arithmetic : uint8_t { reciprocal, true_division };

// Computes x / c for a constant c in the given profile.
NIBBLE_HD constexpr float div_const(float x, float c, Arithmetic arithmetic) {
    return arithmetic == Arithmetic::reciprocal ? x * (1.0f / c) : x / c;
}

}  // namespace nibble
