// Factors of the sums of products, and scales derived from earlier steps.
#include "formats/nvfp4.h"
#include "kernels/cuda/quantize/cast_block.cuh"

namespace nibble::cuda {
namespace {

constexpr int scale_threads = 256;

__global__ void cast_product_scales_kernel(const float* a, const float* b, float constant, float* out, int64_t count) {
    const int64_t i = int64_t{blockIdx.x} * scale_threads + threadIdx.x;
    if (i < count) out[i] = a[0] * b[0] * constant;
}

__device__ void eight_numbers(const uint16_t* x, float (&z)[8]) {
    const uint4 w = *reinterpret_cast<const uint4*>(x);
    const uint32_t pair[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) z[i] = i % 2 ? high_of(pair[i / 2]) : low_of(pair[i / 2]);
}

__global__ void __launch_bounds__(scale_threads)
    cast_see_largest_kernel(const uint16_t* x, int64_t groups, float* seen) {
    float m = 0.0f;
    for (int64_t g = int64_t{blockIdx.x} * scale_threads + threadIdx.x; g < groups;
         g += int64_t{gridDim.x} * scale_threads) {
        float z[8];
        eight_numbers(x + 8 * g, z);
        m = fmaxf(m, largest(z));
    }
    raise<scale_threads>(seen, m);
}

__global__ void __launch_bounds__(scale_threads)
    cast_clear_clipped_kernel(const uint16_t* x, int64_t groups, const float* input_scale, uint16_t* dx) {
    const float most = e2m1_max * nvfp4_decode_scale(e4m3_from_float(e4m3_max), *input_scale);
    for (int64_t g = int64_t{blockIdx.x} * scale_threads + threadIdx.x; g < groups;
         g += int64_t{gridDim.x} * scale_threads) {
        float z[8];
        eight_numbers(x + 8 * g, z);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (magnitude(z[i]) > most) dx[8 * g + i] = 0;
    }
}

// One thread block per scale.
__global__ void __launch_bounds__(scale_threads) cast_renew_scales_kernel(DelayedScales d, const float* clip) {
    float seen = d.seen[blockIdx.x];
    for (int64_t s = 0; s < d.sets; ++s) seen = fmaxf(seen, d.others[s * d.apart + blockIdx.x]);
    if (d.held) {
        const float held = d.held[blockIdx.x];
        __syncthreads();
        const bool lost = isnan(*clip);
        if (!lost) seen = fmaxf(seen, held);
        if (threadIdx.x == 0) d.held[blockIdx.x] = !d.hold ? 0.0f : lost ? held : seen;
        if (d.hold) return;
    }
    if (isnan(*clip)) return;
    if (seen == 0) {
        if (threadIdx.x == 0 && d.stored && d.scales[blockIdx.x] == 0) d.scales[blockIdx.x] = 1.0f;
        return;
    }
    float* const history = d.histories + int64_t{blockIdx.x} * d.history;
    float most = seen;
    for (int64_t i = 1 + threadIdx.x; i < d.history; i += scale_threads) most = fmaxf(most, history[i]);
    most = block_max<scale_threads>(most);
    // Shifts the history by one step in pieces that are read completely before they are written.
    for (int64_t i = 0; i + 1 < d.history; i += scale_threads) {
        const int64_t at = i + threadIdx.x;
        const float next = at + 1 < d.history ? history[at + 1] : 0.0f;
        __syncthreads();
        if (at + 1 < d.history) history[at] = next;
        __syncthreads();
    }
    if (threadIdx.x > 0) return;
    if (d.history > 1) history[d.history - 1] = seen;
    history[0] = 0.0f;
    d.seen[blockIdx.x] = 0.0f;
    if (!is_finite(most) || !(most > 0)) return;
    const float scale = d.stored ? fmaxf(most / d.largest, FLT_MIN) : d.largest / most;
    d.scales[blockIdx.x] = is_finite(scale) ? scale : FLT_MAX;
}

}  // namespace

cudaError_t launch_product_scales(const float* a, const float* b, float constant, float* out, int64_t count,
                                  cudaStream_t stream) {
    cast_product_scales_kernel<<<ceil_blocks(count, scale_threads), scale_threads, 0, stream>>>(a, b, constant, out,
                                                                                                count);
    return cudaGetLastError();
}
cudaError_t launch_see_largest(const uint16_t* x, int64_t count, float* seen, cudaStream_t stream) {
    cast_see_largest_kernel<<<std::min(ceil_blocks(count / 8, scale_threads), 1024u), scale_threads, 0, stream>>>(
        x, count / 8, seen);
    return cudaGetLastError();
}
cudaError_t launch_clear_clipped(const uint16_t* x, int64_t count, const float* input_scale, uint16_t* dx,
                                 cudaStream_t stream) {
    cast_clear_clipped_kernel<<<std::min(ceil_blocks(count / 8, scale_threads), 1024u), scale_threads, 0, stream>>>(
        x, count / 8, input_scale, dx);
    return cudaGetLastError();
}
cudaError_t launch_renew_scales(const DelayedScales& d, const float* clip, cudaStream_t stream) {
    cast_renew_scales_kernel<<<static_cast<unsigned>(d.count), scale_threads, 0, stream>>>(d, clip);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
