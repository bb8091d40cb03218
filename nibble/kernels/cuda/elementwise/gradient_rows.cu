// Sums of columns and of parts, gradients of embedding rows, and copies of parameters in the engine's form.
#include "kernels/cuda/elementwise/elementwise_backward_launch.h"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {
namespace {

constexpr int threads = 128;

__device__ float value_at(const uint16_t* x, int64_t i) { return bf16_to_float(x[i]); }
__device__ float value_at(const float* x, int64_t i) { return x[i]; }

// parts [column_parts][width]: adds the rows of a part in ascending order.
template <class T>
__global__ void __launch_bounds__(threads)
    column_sums_parts_kernel(const T* x, int64_t tokens, int64_t width, float* parts) {
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
    scale_gradient_rows_kernel(const uint16_t* from, int64_t count, float scale, uint16_t* to) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i < count) to[i] = bf16_from_float(bf16_to_float(from[i]) * scale);
}

__global__ void __launch_bounds__(threads) add_one_kernel(float* x, int64_t count) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i < count) x[i] += 1.0f;
}

constexpr int embedding_threads = 256;

// One thread block per id and 4 * embedding_threads columns.
__global__ void __launch_bounds__(embedding_threads)
    embedding_backward_kernel(const __grid_constant__ EmbeddingBackward e) {
    const int64_t column = (int64_t{blockIdx.y} * embedding_threads + threadIdx.x) * 4;
    if (column >= e.width) return;
    float4 sum = {};
    const int end = e.begin[blockIdx.x + 1];
#pragma unroll 4
    for (int i = e.begin[blockIdx.x]; i < end; ++i) {
        const float4 v = *reinterpret_cast<const float4*>(e.dx + int64_t{e.order[i]} * e.width + column);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    auto* to = reinterpret_cast<float4*>(e.dw + int64_t{e.ids[blockIdx.x]} * e.width + column);
    float4 w = *to;
    w.x += e.scale * sum.x, w.y += e.scale * sum.y, w.z += e.scale * sum.z, w.w += e.scale * sum.w;
    *to = w;
}

constexpr int sum_columns = 32, sum_groups = 32;

__global__ void column_sums_kernel(const float* x, int parts, int64_t width, float* out) {
    __shared__ float of_group[sum_groups][sum_columns];
    const int64_t column = int64_t{blockIdx.x} * sum_columns + threadIdx.x;
    const int each = (parts + sum_groups - 1) / sum_groups, first = static_cast<int>(threadIdx.y) * each;
    float sum = 0.0f;
    if (column < width)
#pragma unroll 8
        for (int p = first; p < min(first + each, parts); ++p) sum += x[p * width + column];
    of_group[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || column >= width) return;
    float all = 0.0f;
    for (int g = 0; g < sum_groups; ++g) all += of_group[g][threadIdx.x];
    out[column] = all;
}

}  // namespace

cudaError_t launch_column_sums(const ColumnSums& c, cudaStream_t stream) {
    auto* parts = reinterpret_cast<float*>(c.workspace);
    const dim3 blocks(ceil_blocks(c.width, threads), column_parts);
    if (c.x)
        column_sums_parts_kernel<<<blocks, threads, 0, stream>>>(reinterpret_cast<const uint16_t*>(c.x), c.tokens,
                                                                 c.width, parts);
    else
        column_sums_parts_kernel<<<blocks, threads, 0, stream>>>(c.wide, c.tokens, c.width, parts);
    if (const cudaError_t code = cudaGetLastError()) return code;
    return launch_sum_parts(parts, column_parts, c.width, c.sums, stream);
}

cudaError_t launch_scale_rows(const std::byte* from, int64_t count, float scale, std::byte* to, cudaStream_t stream) {
    scale_gradient_rows_kernel<<<ceil_blocks(count, threads), threads, 0, stream>>>(
        reinterpret_cast<const uint16_t*>(from), count, scale, reinterpret_cast<uint16_t*>(to));
    return cudaGetLastError();
}

cudaError_t launch_add_one(float* x, int64_t count, cudaStream_t stream) {
    add_one_kernel<<<ceil_blocks(count, threads), threads, 0, stream>>>(x, count);
    return cudaGetLastError();
}

cudaError_t launch_embedding_backward(const EmbeddingBackward& e, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(e.unique), ceil_blocks(e.width, 4 * embedding_threads));
    embedding_backward_kernel<<<blocks, embedding_threads, 0, stream>>>(e);
    return cudaGetLastError();
}

cudaError_t launch_sum_parts(const float* x, int parts, int64_t width, float* out, cudaStream_t stream) {
    column_sums_kernel<<<ceil_blocks(width, sum_columns), dim3(sum_columns, sum_groups), 0, stream>>>(x, parts, width,
                                                                                                      out);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
