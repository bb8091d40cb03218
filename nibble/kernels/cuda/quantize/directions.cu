// Splits inputs by their strongest directions P [cols, rank] (train/input_directions.h). FP32 sums ascend, as on the
// host.
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/quantize/cast_launch.h"

namespace nibble::cuda {
namespace {

constexpr int split_threads = 256, split_rows = 16, split_cols = 64;
constexpr int split_sums = split_rows * most_directions / split_threads;  // per thread

// a [n, pitch] = BF16(x P), with zeros after the rank. A thread block has 16 rows; a thread has some of their sums.
__global__ void __launch_bounds__(split_threads) directions_project_kernel(const __grid_constant__ SplitRows s) {
    __shared__ float x[split_rows][split_cols + 1];
    __shared__ float p[split_cols * most_directions];
    const auto thread = static_cast<int>(threadIdx.x), rank = static_cast<int>(s.rank);
    const int64_t row0 = int64_t{blockIdx.x} * split_rows;
    const auto* from = reinterpret_cast<const uint16_t*>(s.x);
    float sum[split_sums] = {};
    for (int64_t col0 = 0; col0 < s.cols; col0 += split_cols) {
        const int cols = static_cast<int>(s.cols - col0 < split_cols ? s.cols - col0 : split_cols);
        __syncthreads();
        for (int i = thread; i < split_rows * cols; i += split_threads) {
            const int64_t row = row0 + i / cols;
            x[i / cols][i % cols] = row < s.n ? bf16_to_float(from[row * s.cols + col0 + i % cols]) : 0.0f;
        }
        for (int i = thread; i < cols * rank; i += split_threads) p[i] = s.p[col0 * rank + i];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < split_sums; ++k) {
            const int at = thread + k * split_threads;
            if (at >= split_rows * rank) break;
            const int row = at / rank, j = at % rank;
            for (int c = 0; c < cols; ++c) sum[k] += x[row][c] * p[c * rank + j];
        }
    }
    auto* to = reinterpret_cast<uint16_t*>(s.a);
#pragma unroll
    for (int k = 0; k < split_sums; ++k) {
        const int at = thread + k * split_threads;
        if (at >= split_rows * rank) break;
        const int64_t row = row0 + at / rank;
        if (row < s.n) to[row * s.pitch + at % rank] = bf16_from_float(sum[k]);
    }
    const int padding = static_cast<int>(s.pitch) - rank;
    for (int i = thread; i < split_rows * padding; i += split_threads)
        if (row0 + i / padding < s.n) to[(row0 + i / padding) * s.pitch + rank + i % padding] = 0;
}

// rest [n, cols] = BF16(x - a P^T)
__global__ void __launch_bounds__(split_threads) directions_rest_kernel(const __grid_constant__ SplitRows s) {
    const int64_t i = int64_t{blockIdx.x} * split_threads + threadIdx.x;
    if (i >= s.n * s.cols) return;
    const int64_t row = i / s.cols, col = i % s.cols;
    const auto* a = reinterpret_cast<const uint16_t*>(s.a) + row * s.pitch;
    float sum = 0.0f;
    for (int64_t j = 0; j < s.rank; ++j) sum += bf16_to_float(a[j]) * s.p[col * s.rank + j];
    const float x = bf16_to_float(reinterpret_cast<const uint16_t*>(s.x)[i]);
    reinterpret_cast<uint16_t*>(s.rest)[i] = bf16_from_float(x - sum);
}

// dw [rows, cols] += turned [rows, pitch] P^T
__global__ void __launch_bounds__(split_threads)
    directions_add_term_kernel(const float* turned, int64_t rows, int64_t pitch, const float* p, int64_t cols,
                               int64_t rank, float* dw) {
    const int64_t i = int64_t{blockIdx.x} * split_threads + threadIdx.x;
    if (i >= rows * cols) return;
    const int64_t row = i / cols, col = i % cols;
    float sum = 0.0f;
    for (int64_t j = 0; j < rank; ++j) sum += turned[row * pitch + j] * p[col * rank + j];
    dw[i] += sum;
}

__global__ void __launch_bounds__(split_threads)
    directions_add_rows_kernel(float* y, int64_t stride, const float* more, int64_t n, int64_t cols) {
    const int64_t i = int64_t{blockIdx.x} * split_threads + threadIdx.x;
    if (i < n * cols) y[i / cols * stride + i % cols] += more[i];
}

__global__ void __launch_bounds__(split_threads)
    directions_add_step_kernel(float* to, const float* from, int64_t count, const float* clip) {
    const int64_t i = int64_t{blockIdx.x} * split_threads + threadIdx.x;
    if (i < count && !isnan(*clip)) to[i] += from[i];
}

}  // namespace

cudaError_t launch_split_rows(const SplitRows& s, cudaStream_t stream) {
    directions_project_kernel<<<ceil_blocks(s.n, split_rows), split_threads, 0, stream>>>(s);
    if (s.rest) directions_rest_kernel<<<ceil_blocks(s.n * s.cols, split_threads), split_threads, 0, stream>>>(s);
    return cudaGetLastError();
}
cudaError_t launch_add_term(const float* turned, int64_t rows, int64_t pitch, const float* p, int64_t cols,
                            int64_t rank, float* dw, cudaStream_t stream) {
    directions_add_term_kernel<<<ceil_blocks(rows * cols, split_threads), split_threads, 0, stream>>>(
        turned, rows, pitch, p, cols, rank, dw);
    return cudaGetLastError();
}
cudaError_t launch_add_rows(float* y, int64_t stride, const float* more, int64_t n, int64_t cols, cudaStream_t stream) {
    directions_add_rows_kernel<<<ceil_blocks(n * cols, split_threads), split_threads, 0, stream>>>(y, stride, more, n,
                                                                                                   cols);
    return cudaGetLastError();
}
cudaError_t launch_add_step(float* to, const float* from, int64_t count, const float* clip, cudaStream_t stream) {
    directions_add_step_kernel<<<ceil_blocks(count, split_threads), split_threads, 0, stream>>>(to, from, count, clip);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
