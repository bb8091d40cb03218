// AdamW's update, and sums, squares and clipping of gradients.
#include "kernels/cuda/optimizer/optimizer_launch.h"
#include "kernels/cuda/primitives/block_sum.cuh"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {
namespace {

constexpr int threads = 256;

__global__ void add_gradient_kernel(float4* to, const float4* left, const float4* right, int64_t count) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= count) return;
    float4 a = left[i];
    const float4 b = right[i];
    a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
    to[i] = a;
}

// One thread block per section of `each` float4.
__global__ void __launch_bounds__(threads)
    gradient_squares_kernel(const float4* x, int64_t count, int64_t each, int first, double* parts) {
    double sum = 0;
    const int64_t begin = (int64_t{first} + blockIdx.x) * each, end = min(count, begin + each);
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += threads) {
        const float4 v = x[i];
        sum = fma(double{v.x}, double{v.x}, sum), sum = fma(double{v.y}, double{v.y}, sum);
        sum = fma(double{v.z}, double{v.z}, sum), sum = fma(double{v.w}, double{v.w}, sum);
    }
    sum = block_sum<threads>(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(threads) gradient_squares_end_kernel(const double* parts, int count, double* out) {
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) sum += parts[i];
    sum = block_sum<threads>(sum);
    if (threadIdx.x == 0) *out = sum;
}

__global__ void clip_factor_kernel(const double* squares, double limit, float* clip) {
    const double norm = sqrt(*squares);
    *clip = !isfinite(norm) ? NAN : !(limit > 0) || norm <= limit ? 1.0f : static_cast<float>(limit / norm);
}

__global__ void __launch_bounds__(threads) adamw_f32_kernel(const __grid_constant__ AdamW a) {
    const float clip = *a.clip;
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (isnan(clip) || 4 * i >= a.count) return;
    const float4 gradient = reinterpret_cast<const float4*>(a.gradient)[i];
    float4 masters = reinterpret_cast<float4*>(a.master)[i], ms = reinterpret_cast<float4*>(a.m)[i],
           vs = reinterpret_cast<float4*>(a.v)[i];
    const auto update = [&](float& master, float& m, float& v, float g) {
        g = clip * g;
        float x = master;
        if (a.decay) x = x * a.keep;
        m = m + a.rest1 * (g - m);
        v = a.beta2 * v + a.rest2 * (g * g);
        master = x - a.rate * (m / (sqrtf(v) / a.root + a.epsilon));
    };
    update(masters.x, ms.x, vs.x, gradient.x);
    update(masters.y, ms.y, vs.y, gradient.y);
    update(masters.z, ms.z, vs.z, gradient.z);
    update(masters.w, ms.w, vs.w, gradient.w);
    reinterpret_cast<float4*>(a.master)[i] = masters;
    reinterpret_cast<float4*>(a.m)[i] = ms;
    reinterpret_cast<float4*>(a.v)[i] = vs;
    reinterpret_cast<uint2*>(a.published)[i] = {pair_of(masters.x, masters.y), pair_of(masters.z, masters.w)};
}

}  // namespace

cudaError_t launch_add_gradient(float* to, const float* from, int64_t count, cudaStream_t stream) {
    return launch_sum_gradients(to, to, from, count, stream);
}

cudaError_t launch_sum_gradients(float* to, const float* a, const float* b, int64_t count, cudaStream_t stream) {
    add_gradient_kernel<<<ceil_blocks(count / 4, threads), threads, 0, stream>>>(
        reinterpret_cast<float4*>(to), reinterpret_cast<const float4*>(a), reinterpret_cast<const float4*>(b),
        count / 4);
    return cudaGetLastError();
}

cudaError_t launch_section_squares(const float* x, int64_t count, int64_t each, int first, int sections, double* parts,
                                   cudaStream_t stream) {
    gradient_squares_kernel<<<static_cast<unsigned>(sections), threads, 0, stream>>>(reinterpret_cast<const float4*>(x),
                                                                                     count / 4, each / 4, first, parts);
    return cudaGetLastError();
}

cudaError_t launch_sum_sections(const double* parts, int count, double* sum, cudaStream_t stream) {
    gradient_squares_end_kernel<<<1, threads, 0, stream>>>(parts, count, sum);
    return cudaGetLastError();
}

cudaError_t launch_clip_factor(const double* squares, double limit, float* clip, cudaStream_t stream) {
    clip_factor_kernel<<<1, 1, 0, stream>>>(squares, limit, clip);
    return cudaGetLastError();
}

cudaError_t launch_adamw(const AdamW& a, cudaStream_t stream) {
    adamw_f32_kernel<<<ceil_blocks(a.count / 4, threads), threads, 0, stream>>>(a);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
