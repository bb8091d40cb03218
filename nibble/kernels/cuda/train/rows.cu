// Sums of columns, and copies of parameters as the engine reads them.
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/train/train_launch.h"

namespace nibble::cuda {
namespace {

constexpr int threads = 128;

__device__ float value_at(const uint16_t* x, int64_t i) { return bf16_to_float(x[i]); }
__device__ float value_at(const float* x, int64_t i) { return x[i]; }

// parts [column_parts][width]: rows of a part in ascending order.
template <class T>
__global__ void __launch_bounds__(threads)
    column_parts_kernel(const T* x, int64_t tokens, int64_t width, float* parts) {
    const int64_t column = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (column >= width) return;
    const int64_t each = (tokens + gridDim.y - 1) / gridDim.y, first = blockIdx.y * each;
    const int64_t last = first + each < tokens ? first + each : tokens;
    float sum = 0.0f;
#pragma unroll 4
    for (int64_t row = first; row < last; ++row) sum += value_at(x, row * width + column);
    parts[blockIdx.y * width + column] = sum;
}

__global__ void __launch_bounds__(threads)
    scale_kernel(const uint16_t* from, int64_t count, float scale, uint16_t* to) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i < count) to[i] = bf16_from_float(bf16_to_float(from[i]) * scale);
}

__global__ void __launch_bounds__(threads) add_one_kernel(float* x, int64_t count) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i < count) x[i] += 1.0f;
}

}  // namespace

cudaError_t launch_column_sums(const ColumnSums& c, cudaStream_t stream) {
    auto* parts = reinterpret_cast<float*>(c.workspace);
    const dim3 blocks(ceil_blocks(c.width, threads), column_parts);
    if (c.x)
        column_parts_kernel<<<blocks, threads, 0, stream>>>(reinterpret_cast<const uint16_t*>(c.x), c.tokens, c.width,
                                                            parts);
    else
        column_parts_kernel<<<blocks, threads, 0, stream>>>(c.wide, c.tokens, c.width, parts);
    if (const cudaError_t code = cudaGetLastError()) return code;
    return launch_sum_parts(parts, column_parts, c.width, c.sums, stream);
}

cudaError_t launch_scale_rows(const std::byte* from, int64_t count, float scale, std::byte* to, cudaStream_t stream) {
    scale_kernel<<<ceil_blocks(count, threads), threads, 0, stream>>>(reinterpret_cast<const uint16_t*>(from), count,
                                                                      scale, reinterpret_cast<uint16_t*>(to));
    return cudaGetLastError();
}

cudaError_t launch_add_one(float* x, int64_t count, cudaStream_t stream) {
    add_one_kernel<<<ceil_blocks(count, threads), threads, 0, stream>>>(x, count);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
