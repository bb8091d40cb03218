// Kernel called by kernels/cuda/short_conv/short_conv.cpp, which checks the arguments.
#pragma once

#include "kernels/state_segment.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

struct ShortConvArgs {
    int width = 0, taps = 0, segments = 0;
    int64_t longest = 0;
    const StateSegment* list = nullptr;
    const float* projected = nullptr;
    const float *weight = nullptr, *bias = nullptr;
    uint16_t* out = nullptr;
    bool overlap = false;
};
cudaError_t launch_short_conv(const ShortConvArgs& args, cudaStream_t stream);

}  // namespace nibble::cuda
