// Checks a KV cache and its inputs and converts them to kernel arguments.
#pragma once

#include "kernels/attention_cuda.h"
#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/elementwise_cuda.h"

namespace nibble::cuda {

Result<CacheArgs> cache_args(const KvCache& cache);
Result<RopeArgs> rope_args(const RopeAppend& r, const KvCache& cache, bool overlap);

}  // namespace nibble::cuda
