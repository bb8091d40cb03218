// What multiplies the sums of products, and scales that follow from the steps before.
#include "kernels/cuda/train/cast_block.cuh"

namespace nibble::cuda {
namespace {

constexpr int scale_threads = 256;

__global__ void product_scales_kernel(const float* a, bool by_row, const float* b, float constant, float* out,
                                      int64_t count) {
    const int64_t i = int64_t{blockIdx.x} * scale_threads + threadIdx.x;
    if (i < count) out[i] = a[by_row ? i : 0] * b[0] * constant;
}

// A thread block for each scale.
__global__ void __launch_bounds__(scale_threads) renew_scales_kernel(DelayedScales d, const float* clip) {
    float seen = d.seen[blockIdx.x];
    for (int64_t s = 0; s < d.sets; ++s) seen = fmaxf(seen, d.others[s * d.apart + blockIdx.x]);
    if (isnan(*clip) || seen == 0) return;
    float* const history = d.histories + int64_t{blockIdx.x} * d.history;
    float most = seen;
    for (int64_t i = 1 + threadIdx.x; i < d.history; i += scale_threads) most = fmaxf(most, history[i]);
    most = block_max<scale_threads>(most);
    // One step up, in pieces that are read whole before they are written.
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
    const float scale = d.largest / most;
    d.scales[blockIdx.x] = is_finite(scale) ? scale : FLT_MAX;
}

}  // namespace

cudaError_t launch_product_scales(const float* a, bool by_row, const float* b, float constant, float* out,
                                  int64_t count, cudaStream_t stream) {
    product_scales_kernel<<<ceil_blocks(count, scale_threads), scale_threads, 0, stream>>>(a, by_row, b, constant, out,
                                                                                           count);
    return cudaGetLastError();
}
cudaError_t launch_renew_scales(const DelayedScales& d, const float* clip, cudaStream_t stream) {
    renew_scales_kernel<<<static_cast<unsigned>(d.count), scale_threads, 0, stream>>>(d, clip);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
