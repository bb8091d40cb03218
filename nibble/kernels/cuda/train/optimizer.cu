// The optimizer's step, sums of gradients, rows of the embedding.
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/train/block_sum.cuh"
#include "kernels/cuda/train/train_launch.h"

namespace nibble::cuda {
namespace {

constexpr int threads = 256;

__global__ void add_kernel(float4* to, const float4* left, const float4* right, int64_t count) {
    const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
    if (i >= count) return;
    float4 a = left[i];
    const float4 b = right[i];
    a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
    to[i] = a;
}

// A thread block per section of `each` float4.
__global__ void __launch_bounds__(threads)
    squares_kernel(const float4* x, int64_t count, int64_t each, int first, double* parts) {
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

__global__ void __launch_bounds__(threads) squares_end_kernel(const double* parts, int count, double* out) {
    double sum = 0;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) sum += parts[i];
    sum = block_sum<threads>(sum);
    if (threadIdx.x == 0) *out = sum;
}

__global__ void clip_kernel(const double* squares, double limit, float* clip) {
    const double norm = sqrt(*squares);
    *clip = !isfinite(norm) ? NAN : !(limit > 0) || norm <= limit ? 1.0f : static_cast<float>(limit / norm);
}

__global__ void __launch_bounds__(threads) adamw_kernel(const __grid_constant__ AdamW a) {
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

// A thread block per id and 4 * threads columns.
__global__ void __launch_bounds__(threads) embedding_kernel(const __grid_constant__ EmbeddingBackward e) {
    const int64_t column = (int64_t{blockIdx.y} * threads + threadIdx.x) * 4;
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

__global__ void sum_parts_kernel(const float* x, int parts, int64_t width, float* out) {
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

cudaError_t launch_add_gradient(float* to, const float* from, int64_t count, cudaStream_t stream) {
    return launch_sum_gradients(to, to, from, count, stream);
}

cudaError_t launch_sum_gradients(float* to, const float* a, const float* b, int64_t count, cudaStream_t stream) {
    add_kernel<<<ceil_blocks(count / 4, threads), threads, 0, stream>>>(reinterpret_cast<float4*>(to),
                                                                        reinterpret_cast<const float4*>(a),
                                                                        reinterpret_cast<const float4*>(b), count / 4);
    return cudaGetLastError();
}

cudaError_t launch_section_squares(const float* x, int64_t count, int64_t each, int first, int sections, double* parts,
                                   cudaStream_t stream) {
    squares_kernel<<<static_cast<unsigned>(sections), threads, 0, stream>>>(reinterpret_cast<const float4*>(x),
                                                                            count / 4, each / 4, first, parts);
    return cudaGetLastError();
}

cudaError_t launch_sum_sections(const double* parts, int count, double* sum, cudaStream_t stream) {
    squares_end_kernel<<<1, threads, 0, stream>>>(parts, count, sum);
    return cudaGetLastError();
}

cudaError_t launch_clip_factor(const double* squares, double limit, float* clip, cudaStream_t stream) {
    clip_kernel<<<1, 1, 0, stream>>>(squares, limit, clip);
    return cudaGetLastError();
}

cudaError_t launch_adamw(const AdamW& a, cudaStream_t stream) {
    adamw_kernel<<<ceil_blocks(a.count / 4, threads), threads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_embedding_backward(const EmbeddingBackward& e, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(e.unique), ceil_blocks(e.width, 4 * threads));
    embedding_kernel<<<blocks, threads, 0, stream>>>(e);
    return cudaGetLastError();
}

cudaError_t launch_sum_parts(const float* x, int parts, int64_t width, float* out, cudaStream_t stream) {
    sum_parts_kernel<<<ceil_blocks(width, sum_columns), dim3(sum_columns, sum_groups), 0, stream>>>(x, parts, width,
                                                                                                    out);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
