// The backward pass of norms and activations.
#include "kernels/cuda/elementwise/elementwise_backward_launch.h"
#include "kernels/cuda/primitives/rows8.cuh"
#include "kernels/cuda/primitives/value_slope.cuh"

namespace nibble::cuda {
namespace {

// ---- Norm ----------------------------------------------------------------------------------------------------------

// Eight columns of a row: x, dy, and the gradient to add to.
struct NormColumns {
    uint4 x, dy;
    float4 dx[2];

    __device__ void load(const NormBackward& n, int64_t at) {
        x = *reinterpret_cast<const uint4*>(n.x + 2 * at);
        dy = *reinterpret_cast<const uint4*>(n.dy + 2 * at);
        if (!n.add) return;
        dx[0] = *reinterpret_cast<const float4*>(n.dx + at);
        dx[1] = *reinterpret_cast<const float4*>(n.dx + at + 4);
    }
    __device__ void add_to(float (&out)[8]) const {
        out[0] += dx[0].x, out[1] += dx[0].y, out[2] += dx[0].z, out[3] += dx[0].w;
        out[4] += dx[1].x, out[5] += dx[1].y, out[6] += dx[1].z, out[7] += dx[1].w;
    }
};

// A thread block processes a part of the rows, one row after the other. A thread owns eight columns, PerThread times,
// and accumulates their part of dweight. Ahead: loads a row while the previous one is summed.
template <int Threads, int PerThread, bool Ahead>
__global__ void __launch_bounds__(Threads) norm_backward_kernel(const __grid_constant__ NormBackward n, float* parts) {
    __shared__ float2 of_warp[2][Threads / 32];
    const int chunks = static_cast<int>(n.width / 8);
    const int64_t each = (n.tokens + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each;
    const int64_t last = first + each < n.tokens ? first + each : n.tokens;
    float weight[PerThread][8], dweight[PerThread][8];
    NormColumns row_of[PerThread], next[PerThread];
    const auto visit = [&](auto each_chunk) {
#pragma unroll
        for (int k = 0; k < PerThread; ++k)
            if (const int chunk = static_cast<int>(threadIdx.x) + k * Threads; chunk < chunks) each_chunk(k, 8 * chunk);
    };
    const auto load = [&](NormColumns(&to)[PerThread], int64_t row) {
        visit([&](int k, int column) { to[k].load(n, row * n.width + column); });
    };
    visit([&](int k, int column) {
#pragma unroll
        for (int j = 0; j < 8; ++j) weight[k][j] = n.weight[column + j], dweight[k][j] = 0.0f;
    });
    if (first < last) load(row_of, first);
    int turn = 0;
    for (int64_t row = first; row < last; ++row, turn ^= 1) {
        if (Ahead && row + 1 < last) load(next, row + 1);
        float2 sums = {0.0f, 0.0f};  // sums of x * x and of g * x
        visit([&](int k, int) {
            float x[8], dy[8];
            unpack8(row_of[k].x, x);
            unpack8(row_of[k].dy, dy);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                sums.x = fmaf(x[j], x[j], sums.x);
                sums.y = fmaf(dy[j] * weight[k][j], x[j], sums.y);
            }
        });
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            sums.x += __shfl_xor_sync(0xFFFFFFFFu, sums.x, step);
            sums.y += __shfl_xor_sync(0xFFFFFFFFu, sums.y, step);
        }
        if (threadIdx.x % 32 == 0) of_warp[turn][threadIdx.x / 32] = sums;
        __syncthreads();
        sums = {0.0f, 0.0f};
#pragma unroll
        for (int w = 0; w < Threads / 32; ++w) sums.x += of_warp[turn][w].x, sums.y += of_warp[turn][w].y;
        const float r = 1.0f / sqrtf(sums.x / static_cast<float>(n.width) + n.eps);
        const float c = sums.y / static_cast<float>(n.width) * r * r;
        visit([&](int k, int column) {
            const int64_t at = row * n.width + column;
            float x[8], dy[8], out[8];
            unpack8(row_of[k].x, x);
            unpack8(row_of[k].dy, dy);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                out[j] = r * (dy[j] * weight[k][j] - x[j] * c);
                dweight[k][j] = fmaf(dy[j], x[j] * r, dweight[k][j]);
            }
            if (n.add) row_of[k].add_to(out);
            if (n.dx) {
                auto* to = reinterpret_cast<float4*>(n.dx + at);
                to[0] = {out[0], out[1], out[2], out[3]};
                to[1] = {out[4], out[5], out[6], out[7]};
            }
            if (n.rows) pack8(n.rows + 2 * at, out);
            if (Ahead) row_of[k] = next[k];
        });
        if (!Ahead && row + 1 < last) load(row_of, row + 1);
    }
    visit([&](int k, int column) {
        auto* to = reinterpret_cast<float4*>(parts + blockIdx.x * n.width + column);
        to[0] = {dweight[k][0], dweight[k][1], dweight[k][2], dweight[k][3]};
        to[1] = {dweight[k][4], dweight[k][5], dweight[k][6], dweight[k][7]};
    });
}

// ---- Activation ----------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(256) activate_backward_kernel(const __grid_constant__ ActivateBackwardArgs a) {
    const int64_t token = blockIdx.x, column = 8 * (int64_t{blockIdx.y} * 256 + threadIdx.x);
    if (column >= a.width) return;
    const int64_t stride = a.gated ? 2 * a.width : a.width;
    const int64_t gate_at = 2 * (token * stride + column), up_at = gate_at + 2 * a.width;
    float x[8], up[8] = {}, d[8], mid[8], dx[8], d_up[8];
    unpack8(a.in + gate_at, x);
    if (a.gated) unpack8(a.in + up_at, up);
    unpack8(a.d_mid + 2 * (token * a.width + column), d);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const ValueAndSlope v = value_and_slope(a.activation, x[j]);
        const float value = act_of(a.activation, x[j]);
        mid[j] = a.gated ? value * up[j] : value;
        d_up[j] = d[j] * v.value;
        dx[j] = (a.gated ? d[j] * up[j] : d[j]) * v.slope;
    }
    pack8(a.d_in + gate_at, dx);
    if (a.gated) pack8(a.d_in + up_at, d_up);
    if (a.mid) pack8(a.mid + 2 * (token * a.width + column), mid);
}

}  // namespace

cudaError_t launch_norm_backward(const NormBackward& n, cudaStream_t stream) {
    auto* parts = reinterpret_cast<float*>(n.workspace);
    const int64_t chunks = n.width / 8;
    if (chunks <= 128)
        norm_backward_kernel<128, 1, true><<<sum_parts, 128, 0, stream>>>(n, parts);
    else if (chunks <= 256)
        norm_backward_kernel<256, 1, true><<<sum_parts, 256, 0, stream>>>(n, parts);
    else if (chunks <= 512)
        norm_backward_kernel<256, 2, true><<<sum_parts, 256, 0, stream>>>(n, parts);
    else if (chunks <= 1024)
        norm_backward_kernel<512, 2, true><<<sum_parts, 512, 0, stream>>>(n, parts);
    else
        norm_backward_kernel<512, 4, false><<<sum_parts, 512, 0, stream>>>(n, parts);
    if (const cudaError_t code = cudaGetLastError()) return code;
    return n.dweight ? launch_sum_parts(parts, sum_parts, n.width, n.dweight, stream) : cudaSuccess;
}

cudaError_t launch_activate_backward(const ActivateBackwardArgs& a, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(a.tokens), ceil_blocks(a.width / 8, 256));
    activate_backward_kernel<<<blocks, 256, 0, stream>>>(a);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
