// Kernels called by kernels/cuda/observe/observe.cpp, which checks the arguments. Pointers are device pointers.
#pragma once

#include "kernels/cuda/elementwise/elementwise_launch.h"
#include "kernels/device_ranges.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

struct RangeArgs {
    const uint4* x = nullptr;
    int64_t rows = 0, chunks = 0;  // chunks: per row, of eight columns
    int experts = 1;
    const int32_t* begin = nullptr;
    RangeSums* sums = nullptr;
    uint64_t* counts = nullptr;
};
cudaError_t launch_ranges(const RangeArgs& args, cudaStream_t stream);
cudaError_t launch_range_counts(const RangeArgs& args, cudaStream_t stream);

struct ReadKvArgs {
    CacheArgs cache;
    const int64_t* slots = nullptr;
    uint16_t* k = nullptr;
    uint16_t* v = nullptr;
    int64_t tokens = 0;
};
cudaError_t launch_read_kv(const ReadKvArgs& args, cudaStream_t stream);

// Transposes: out [n, padded] has rows of x as columns, zeros from `rows` on.
cudaError_t launch_transpose(const uint16_t* x, int64_t rows, int64_t n, uint16_t* out, int64_t padded,
                             cudaStream_t stream);
cudaError_t launch_add_sums(const float* part, int64_t count, double* sums, cudaStream_t stream);
cudaError_t launch_local_moments(const uint16_t* x, int64_t rows, int64_t n, double* sums, cudaStream_t stream);

cudaError_t launch_divergences(const float* p, const float* q, int64_t rows, int64_t vocab, double* out,
                               cudaStream_t stream);

}  // namespace nibble::cuda
