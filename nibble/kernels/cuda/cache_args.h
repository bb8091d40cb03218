// The cache as kernels see it, checked.
#pragma once

#include "kernels/attention_cuda.h"
#include "kernels/cuda/elementwise_launch.h"

namespace nibble::cuda {

Result<CacheArgs> cache_args(const KvCache& cache);

}  // namespace nibble::cuda
