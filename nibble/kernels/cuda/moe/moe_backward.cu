// Operations between the products of a mixture's backward pass.
#include "kernels/cuda/matmul/bf16/operand_launch.h"
#include "kernels/cuda/moe/moe_backward_launch.h"
#include "kernels/cuda/primitives/value_slope.cuh"

namespace nibble::cuda {
namespace {

constexpr int slot_threads = 128, route_warps = 4, sum_threads = 256;
constexpr unsigned every_lane = 0xFFFFFFFFu;

__device__ float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(every_lane, value, step);
    return value;
}
__device__ float warp_max(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(every_lane, value, step));
    return value;
}

// Each thread writes eight columns, in the layout of bf16/operand.cu.
__global__ void __launch_bounds__(sum_threads) moe_operands_kernel(const __grid_constant__ ExpertsOperandsArgs a) {
    const int64_t i = int64_t{blockIdx.x} * sum_threads + threadIdx.x, chunks = a.cols / 8;
    if (i >= a.experts * a.rows * chunks) return;
    const int64_t chunk = i % chunks, row = i / chunks % a.rows, expert = i / chunks / a.rows;
    std::byte* tile =
        a.tiles + expert * a.expert_bytes + (row / operand_tile * ((chunks + 7) / 8) + chunk / 8) * operand_tile_bytes;
    *reinterpret_cast<uint4*>(tile + row % operand_tile * 128 + (chunk % 8 ^ row % 8) * 16) =
        reinterpret_cast<const uint4*>(a.w)[i];
}

// One thread block per slot, in token order.
__global__ void __launch_bounds__(slot_threads) moe_activate_kernel(const __grid_constant__ ExpertsActivateArgs a) {
    __shared__ float of_warp[slot_threads / 32];
    const int64_t slot = blockIdx.x, row = a.places[slot], stride = a.gated ? 2 * a.width : a.width;
    const float weight = a.weights[slot];
    float dot = 0.0f;
    for (int64_t column = 8 * threadIdx.x; column < a.width; column += 8 * slot_threads) {
        const int64_t gate_at = 2 * (row * stride + column), up_at = gate_at + 2 * a.width;
        const int64_t mid_at = 2 * (row * a.width + column);
        float x[8], up[8] = {}, d[8], mid[8], dx[8], d_up[8];
        unpack8(a.in + gate_at, x);
        if (a.gated) unpack8(a.in + up_at, up);
        unpack8(a.d_mid + mid_at, d);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const ValueAndSlope v = value_and_slope(a.activation, x[j]);
            const float value = act(a.activation, x[j]), own = rounded(a.gated ? value * up[j] : value);
            dot = fmaf(d[j], own, dot);
            mid[j] = a.plain_mid ? own : weight * own;
            const float g = weight * d[j];
            d_up[j] = g * v.value;
            dx[j] = (a.gated ? g * up[j] : g) * v.slope;
        }
        pack8(a.d_in + gate_at, dx);
        if (a.gated) pack8(a.d_in + up_at, d_up);
        pack8(a.mid + mid_at, mid);
    }
    dot = warp_sum(dot);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = dot;
    __syncthreads();
    if (threadIdx.x > 0) return;
    float all = 0.0f;
    for (const float part : of_warp) all += part;
    a.d_weights[slot] = all;
}

__global__ void __launch_bounds__(slot_threads)
    moe_weigh_slots_kernel(int64_t width, const int32_t* places, const float* weights, std::byte* rows) {
    const int64_t slot = blockIdx.x;
    const float weight = weights[slot];
    std::byte* row = rows + 2 * places[slot] * width;
    for (int64_t column = 8 * threadIdx.x; column < width; column += 8 * slot_threads) {
        float x[8];
        unpack8(row + 2 * column, x);
#pragma unroll
        for (float& v : x) v = weight * v;
        pack8(row + 2 * column, x);
    }
}

// One warp per token; p is in shared memory.
__global__ void __launch_bounds__(32 * route_warps)
    moe_route_backward_kernel(const __grid_constant__ RouteBackwardArgs a) {
    extern __shared__ float scores[];
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, n = a.count;
    const int64_t token = int64_t{blockIdx.x} * route_warps + warp;
    if (token >= a.tokens) return;
    float *p = scores + 2 * warp * n, *d = p + n;
    const float* logits = a.logits + token * n;
    float most = -INFINITY, total = 0.0f;
    for (int i = lane; i < n; i += 32) {
        p[i] = a.round ? rounded(logits[i]) : logits[i];
        most = fmaxf(most, p[i]);
    }
    most = warp_max(most);
    for (int i = lane; i < n; i += 32) {
        p[i] = a.sigmoid ? 1.0f / (1.0f + exp_of(-p[i])) : exp_of(p[i] - most);
        total += p[i];
        d[i] = 0.0f;
    }
    total = warp_sum(total);
    if (!a.sigmoid)
        for (int i = lane; i < n; i += 32) p[i] = p[i] / total;
    __syncwarp();
    // One lane per chosen expert.
    const bool chosen = lane < a.top_k;
    const int expert = chosen ? a.experts[token * a.top_k + lane] : 0;
    const float dw = chosen ? a.d_weights[token * a.top_k + lane] : 0.0f, own = chosen ? p[expert] : 0.0f;
    const float sum = warp_sum(own) + a.smallest_sum, weighted = warp_sum(dw * own);
    if (chosen) d[expert] = (a.normalize ? (dw - weighted / sum) / sum : dw) * a.scaling;
    __syncwarp();
    float mean = 0.0f;
    if (!a.sigmoid) {
        for (int i = lane; i < n; i += 32) mean = fmaf(d[i], p[i], mean);
        mean = warp_sum(mean);
    }
    for (int i = lane; i < n; i += 32)
        a.d_logits[token * n + i] = bf16_from_float(a.sigmoid ? d[i] * (p[i] * (1.0f - p[i])) : p[i] * (d[i] - mean));
}

__global__ void __launch_bounds__(sum_threads) moe_sum_slots_kernel(const __grid_constant__ SumSlotsArgs a) {
    const int64_t chunks = a.width / 8, i = int64_t{blockIdx.x} * sum_threads + threadIdx.x;
    if (i >= a.tokens * chunks) return;
    const int64_t token = i / chunks, column = i % chunks * 8;
    float sum[8] = {}, x[8];
    const auto add = [&](const std::byte* from) {
        unpack8(from, x);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[j] += x[j];
    };
    for (int k = 0; k < a.top_k; ++k) add(a.rows + 2 * (int64_t{a.places[token * a.top_k + k]} * a.width + column));
#pragma unroll
    for (int m = 0; m < 3; ++m)
        if (a.more[m]) add(a.more[m] + 2 * (token * a.width + column));
    pack8(a.out + 2 * (token * a.width + column), sum);
}

}  // namespace

cudaError_t launch_experts_operands(const ExpertsOperandsArgs& a, cudaStream_t stream) {
    moe_operands_kernel<<<ceil_blocks(a.experts * a.rows * (a.cols / 8), sum_threads), sum_threads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_experts_activate_backward(const ExpertsActivateArgs& a, cudaStream_t stream) {
    moe_activate_kernel<<<static_cast<unsigned>(a.slots), slot_threads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_weigh_slots(int64_t slots, int64_t width, const int32_t* places, const float* weights,
                               std::byte* rows, cudaStream_t stream) {
    moe_weigh_slots_kernel<<<static_cast<unsigned>(slots), slot_threads, 0, stream>>>(width, places, weights, rows);
    return cudaGetLastError();
}

cudaError_t launch_route_backward(const RouteBackwardArgs& a, cudaStream_t stream) {
    moe_route_backward_kernel<<<ceil_blocks(a.tokens, route_warps), 32 * route_warps, route_warps * 8 * a.count,
                                stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_sum_slots(const SumSlotsArgs& a, cudaStream_t stream) {
    moe_sum_slots_kernel<<<ceil_blocks(a.tokens * (a.width / 8), sum_threads), sum_threads, 0, stream>>>(a);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
