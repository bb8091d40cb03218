#include "kernels/cuda/lora/adapters_launch.h"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {
namespace {

constexpr int adapter_threads = 256;

__global__ void __launch_bounds__(adapter_threads)
    lora_add_scaled_rows_kernel(float* y, int64_t stride, const float* more, float scale, int64_t n, int64_t cols) {
    const int64_t i = int64_t{blockIdx.x} * adapter_threads + threadIdx.x;
    if (i >= n * cols) return;
    float& to = y[i / cols * stride + i % cols];
    to = rounded(rounded(to) + rounded(scale * rounded(more[i])));
}

// One thread per element of a narrow row, and of a wide one.
__global__ void __launch_bounds__(adapter_threads)
    lora_spread_blocks_kernel(const __grid_constant__ AdapterBlocks b, const uint16_t* narrow, int64_t narrow_rows,
                              uint16_t* wide) {
    const int64_t i = int64_t{blockIdx.x} * adapter_threads + threadIdx.x, width = b.parts * b.rank;
    if (i >= b.experts * b.rows * width) return;
    const int64_t row = i / width % b.rows, expert = i / width / b.rows, column = i % width;
    int64_t from = expert * narrow_rows;
    uint16_t value = 0;
    for (int p = 0; p < b.parts; ++p) {
        const int64_t own = row - b.part[p].first, of_part = column - p * b.rank;
        if (own >= 0 && own < b.part[p].rows && of_part >= 0 && of_part < b.rank)
            value = narrow[(from + own) * b.rank + of_part];
        from += b.part[p].rows;
    }
    wide[i] = value;
}

__global__ void __launch_bounds__(adapter_threads)
    lora_gather_blocks_kernel(const __grid_constant__ AdapterBlocks b, const float* wide, float scale, float* narrow,
                              int64_t narrow_rows) {
    const int64_t i = int64_t{blockIdx.x} * adapter_threads + threadIdx.x, width = b.parts * b.rank;
    if (i >= b.experts * narrow_rows * b.rank) return;
    const int64_t expert = i / b.rank / narrow_rows;
    int64_t own = i / b.rank % narrow_rows;
    int p = 0;
    for (; own >= b.part[p].rows; ++p) own -= b.part[p].rows;
    narrow[i] = scale * wide[(expert * b.rows + b.part[p].first + own) * width + p * b.rank + i % b.rank];
}

}  // namespace

cudaError_t launch_add_scaled_rows(float* y, int64_t stride, const float* more, float scale, int64_t n, int64_t cols,
                                   cudaStream_t stream) {
    lora_add_scaled_rows_kernel<<<ceil_blocks(n * cols, adapter_threads), adapter_threads, 0, stream>>>(y, stride, more,
                                                                                                        scale, n, cols);
    return cudaGetLastError();
}

cudaError_t launch_spread_blocks(const AdapterBlocks& b, const uint16_t* narrow, uint16_t* wide, cudaStream_t stream) {
    const unsigned blocks = ceil_blocks(b.experts * b.rows * b.width(), adapter_threads);
    lora_spread_blocks_kernel<<<blocks, adapter_threads, 0, stream>>>(b, narrow, b.narrow_rows(), wide);
    return cudaGetLastError();
}

cudaError_t launch_gather_blocks(const AdapterBlocks& b, const float* wide, float scale, float* narrow,
                                 cudaStream_t stream) {
    const unsigned blocks = ceil_blocks(b.experts * b.narrow_rows() * b.rank, adapter_threads);
    lora_gather_blocks_kernel<<<blocks, adapter_threads, 0, stream>>>(b, wide, scale, narrow, b.narrow_rows());
    return cudaGetLastError();
}

}  // namespace nibble::cuda
