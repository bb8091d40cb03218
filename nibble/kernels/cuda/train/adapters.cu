#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/train/adapters_launch.h"

namespace nibble::cuda {
namespace {

constexpr int adapter_threads = 256;

__global__ void __launch_bounds__(adapter_threads)
    add_scaled_rows_kernel(float* y, int64_t stride, const float* more, float scale, int64_t n, int64_t cols) {
    const int64_t i = int64_t{blockIdx.x} * adapter_threads + threadIdx.x;
    if (i >= n * cols) return;
    float& to = y[i / cols * stride + i % cols];
    to = rounded(rounded(to) + rounded(scale * rounded(more[i])));
}

}  // namespace

cudaError_t launch_add_scaled_rows(float* y, int64_t stride, const float* more, float scale, int64_t n, int64_t cols,
                                   cudaStream_t stream) {
    add_scaled_rows_kernel<<<ceil_blocks(n * cols, adapter_threads), adapter_threads, 0, stream>>>(y, stride, more,
                                                                                                   scale, n, cols);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
