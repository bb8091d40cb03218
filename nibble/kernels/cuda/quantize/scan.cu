// Finds the maximum over finite elements and the first element that is not finite. Both are integer maxima or minima,
// which do not depend on the order.
#include "kernels/cuda/primitives/block16.cuh"
#include "kernels/cuda/quantize/quantize_launch.h"
#include "kernels/device_scan.h"

#include <cuda_runtime.h>

namespace nibble::cuda {
namespace {

constexpr int threads = 256, per_thread = 4;
constexpr unsigned long long none = ~0ull;

struct Found {
    uint32_t amax = 0;  // bits of a magnitude, which order like the number
    unsigned long long first = none;

    __device__ void element(float x, unsigned long long index) {
        const uint32_t bits = __float_as_uint(x) & 0x7FFFFFFFu;
        if (bits < 0x7F800000u)
            amax = max(amax, bits);
        else
            first = min(first, index);
    }
};

template <class In>
__global__ void __launch_bounds__(threads) quantize_scan_kernel(const uint8_t* __restrict__ data, int64_t elements,
                                                                unsigned long long first_element, DeviceScan* scan) {
    const int64_t chunks = elements / chunk;
    const int64_t first = int64_t{blockIdx.x} * (threads * per_thread) + threadIdx.x;
    Found found;
    Chunk<In> w[per_thread];
#pragma unroll
    for (int k = 0; k < per_thread; ++k) {
        const int64_t index = first + k * threads;
        if (index < chunks)
            w[k].load(data + index * Chunk<In>::bytes);
        else
            w[k].clear();
    }
#pragma unroll
    for (int k = 0; k < per_thread; ++k) {
        const uint32_t m = w[k].amax_bits();
        if (m < 0x7F800000u) {
            found.amax = max(found.amax, m);
        } else {
#pragma unroll
            for (int i = 0; i < chunk; ++i)
                found.element(w[k].value(i), first_element + (first + k * threads) * chunk + i);
        }
    }
    if (blockIdx.x == 0 && threadIdx.x < elements % chunk) {  // the end of a matrix without whole chunks
        const int64_t i = chunks * chunk + threadIdx.x;
        found.element(element_at<In>(data + chunks * Chunk<In>::bytes, static_cast<int>(threadIdx.x)),
                      first_element + i);
    }
    const uint32_t amax = __reduce_max_sync(0xFFFFFFFFu, found.amax);
    __shared__ uint32_t warp_amax[threads / 32];
    if (threadIdx.x % 32 == 0) warp_amax[threadIdx.x / 32] = amax;
    if (found.first != none) atomicMin(reinterpret_cast<unsigned long long*>(&scan->first_nonfinite), found.first);
    __syncthreads();
    if (threadIdx.x < 32) {
        const uint32_t all = __reduce_max_sync(0xFFFFFFFFu, threadIdx.x < threads / 32 ? warp_amax[threadIdx.x] : 0);
        // Most blocks find a larger maximum and skip the atomic.
        auto* target = reinterpret_cast<unsigned int*>(&scan->amax);
        if (threadIdx.x == 0 && all > *reinterpret_cast<volatile unsigned int*>(target)) atomicMax(target, all);
    }
}

__global__ void quantize_scan_reset_kernel(DeviceScan* scan) { *scan = {0.0f, 0, none}; }

}  // namespace

cudaError_t launch_reset_scan(DeviceScan* scan, cudaStream_t stream) {
    quantize_scan_reset_kernel<<<1, 1, 0, stream>>>(scan);
    return cudaGetLastError();
}

cudaError_t launch_scan(const Input& in, int64_t first_element, DeviceScan* scan, cudaStream_t stream) {
    const int64_t n = in.elements();
    if (n == 0) return cudaSuccess;
    constexpr int64_t per_block = int64_t{threads} * per_thread * chunk;
    const auto blocks = static_cast<unsigned>((n + per_block - 1) / per_block);
    const auto begin = static_cast<unsigned long long>(first_element);
    if (in.f32)
        quantize_scan_kernel<F32><<<blocks, threads, 0, stream>>>(in.data, n, begin, scan);
    else
        quantize_scan_kernel<Bf16><<<blocks, threads, 0, stream>>>(in.data, n, begin, scan);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
