// MS-EDEN: a thread has 128 numbers along the reduction in shared memory.
#include "kernels/cuda/quantize/cast_block.cuh"

namespace nibble::cuda {
namespace {

constexpr int eden_threads = 64, eden_apart = eden_threads + 1;

template <bool Down>
__device__ void eden_load(const CastArgs& a, int64_t first, int64_t group, float* z) {
    if constexpr (Down) {
        for (int i = 0; i < eden_group; ++i) {
            const int64_t row = group * eden_group + i, col = first + threadIdx.x;
            float x = 0.0f;
            if (row < a.rows && col < a.cols) {
                x = bf16_to_float(a.x[row * a.stride + col]);
                if (a.source_scale) x = x * (a.source_scale[a.by_row ? row : 0] * a.factor);
            }
            z[i * eden_apart + threadIdx.x] = x;
        }
    } else {
        for (int v = 0; v < eden_threads; ++v)
            for (int i = static_cast<int>(threadIdx.x); i < eden_group; i += eden_threads) {
                const int64_t row = first + v, col = group * eden_group + i;
                float x = 0.0f;
                if (row < a.rows && col < a.cols) {
                    x = bf16_to_float(a.x[row * a.stride + col]);
                    if (a.source_scale) x = x * (a.source_scale[a.by_row ? row : 0] * a.factor);
                }
                z[i * eden_apart + v] = x;
            }
    }
    __syncthreads();
}

template <bool Down>
__device__ void eden_store(const CastArgs& a, int64_t first, int64_t group, const float* z) {
    __syncthreads();
    if constexpr (Down) {
        if (first + threadIdx.x >= a.outer) return;
        for (int i = 0; i < eden_group; ++i)
            a.values[(group * eden_group + i) * a.pitch + first + threadIdx.x] =
                bf16_from_float(z[i * eden_apart + threadIdx.x]);
    } else {
        for (int v = 0; v < eden_threads && first + v < a.outer; ++v)
            for (int i = static_cast<int>(threadIdx.x); i < eden_group; i += eden_threads)
                a.values[(first + v) * a.pitch + group * eden_group + i] = bf16_from_float(z[i * eden_apart + v]);
    }
}

template <bool Down>
__global__ void __launch_bounds__(eden_threads) cast_eden_rotate_kernel(const __grid_constant__ CastArgs a) {
    __shared__ float z[eden_group * eden_apart];
    __shared__ float sign[eden_group];
    const int64_t first = int64_t{blockIdx.x} * eden_threads, group = blockIdx.y;
    for (int i = static_cast<int>(threadIdx.x); i < eden_group; i += eden_threads)
        sign[i] =
            a.signs.block(a.first_sign + static_cast<uint64_t>(group * eden_group + i), 0).word[0] & 1 ? -1.0f : 1.0f;
    eden_load<Down>(a, first, group, z);
    float* own = z + threadIdx.x;
    for (int i = 0; i < eden_group; ++i) own[i * eden_apart] = own[i * eden_apart] * sign[i];
    hadamard128(own, eden_apart);
    float m = 0.0f;
    for (int i = 0; i < eden_group; ++i) {
        const float v = eden_rotated(own[i * eden_apart]);
        own[i * eden_apart] = v;
        m = magnitude(v) > m ? magnitude(v) : m;
    }
    eden_store<Down>(a, first, group, z);
    raise<eden_threads>(a.amax, m);
}

template <bool Down>
__global__ void __launch_bounds__(eden_threads) cast_eden_encode_kernel(const __grid_constant__ CastArgs a) {
    __shared__ float z[eden_group * eden_apart];
    const int64_t first = int64_t{blockIdx.x} * eden_threads, group = blockIdx.y;
    const float d = eden_scale(*a.amax);
    eden_load<Down>(a, first, group, z);
    if (first + threadIdx.x < a.outer)
        eden_encode(z + threadIdx.x, eden_apart, d, a.random, static_cast<uint64_t>(first + threadIdx.x),
                    static_cast<uint64_t>(group));
    eden_store<Down>(a, first, group, z);
    if (first == 0 && group == 0 && threadIdx.x == 0) *a.scale = d;
}

template <bool Down>
cudaError_t eden(CastArgs a, cudaStream_t stream) {
    if (const cudaError_t code = cudaMemsetAsync(a.amax, 0, sizeof(float), stream)) return code;
    const dim3 blocks(ceil_blocks(a.outer, eden_threads), static_cast<unsigned>(a.groups));
    cast_eden_rotate_kernel<Down><<<blocks, eden_threads, 0, stream>>>(a);
    a.x = a.values, a.stride = a.pitch, a.source_scale = nullptr;
    (Down ? a.rows : a.cols) = eden_group * a.groups;
    cast_eden_encode_kernel<Down><<<blocks, eden_threads, 0, stream>>>(a);
    return cudaGetLastError();
}

}  // namespace

cudaError_t launch_eden(const CastArgs& a, bool down, cudaStream_t stream) {
    return down ? eden<true>(a, stream) : eden<false>(a, stream);
}

}  // namespace nibble::cuda
