// Kernels called by cache_rows.cpp, which checks the arguments.
#pragma once

#include "kernels/cache_rows_args.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

cudaError_t launch_round_cache(const RoundCache& r, cudaStream_t stream);
cudaError_t launch_clear_clipped(const ClearClipped& c, cudaStream_t stream);
cudaError_t launch_see_cache(const SeeCache& s, cudaStream_t stream);

}  // namespace nibble::cuda
