// Kernels called by the host side of adapters.cu.
#pragma once

#include "kernels/adapter_blocks.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nibble::cuda {

cudaError_t launch_add_scaled_rows(float* y, int64_t stride, const float* more, float scale, int64_t n, int64_t cols,
                                   cudaStream_t stream);
cudaError_t launch_spread_blocks(const AdapterBlocks& b, const uint16_t* narrow, uint16_t* wide, cudaStream_t stream);
cudaError_t launch_gather_blocks(const AdapterBlocks& b, const float* wide, float scale, float* narrow,
                                 cudaStream_t stream);

}  // namespace nibble::cuda
