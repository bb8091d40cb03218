// The backward pass of Mamba-2 around its scans: recomputes intermediate values, then gate and norm, steps,
// convolution.
#include "kernels/cuda/elementwise/elementwise_backward_launch.h"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/value_slope.cuh"
#include "kernels/cuda/ssm/ssm_backward_launch.h"

namespace nibble::cuda {
namespace {

constexpr int mamba_threads = 128, mamba_warps = mamba_threads / 32, most_taps = 16;

__device__ float all_lanes(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
    return value;
}

// Like mamba_step(), one output per thread.
__global__ void __launch_bounds__(mamba_threads) mamba_inputs_kernel(const __grid_constant__ MambaBackArgs a) {
    const int64_t all = a.tokens * a.channels, i = int64_t{blockIdx.x} * mamba_threads + threadIdx.x;
    if (i < all) {
        const int64_t token = i / a.channels, c = i % a.channels;
        float acc = a.conv_bias ? a.conv_bias[c] : 0.0f;
        for (int j = 0; j < a.conv; ++j) {
            const int64_t row = token - (a.conv - 1) + j;
            const float x = row >= a.first[token] ? bf16_to_float(a.projected[row * a.stride + a.inner + c]) : 0.0f;
            acc = fmaf(a.conv_weight[j * a.channels + c], x, acc);
        }
        a.raw[i] = acc;
        a.xbc[i] = bf16_from_float(silu(acc));
    } else if (i - all < a.tokens * a.heads) {
        const int64_t at = i - all, token = at / a.heads, h = at % a.heads;
        const double u = bf16_to_float(a.projected[token * a.stride + a.inner + a.channels + h]) + a.dt_bias[h];
        const double rest = log1p(exp(-fabs(u)));
        const float dt = fmaxf(static_cast<float>(u > 0 ? u + rest : rest), a.dt_min);
        a.dt[at] = dt;
        a.decay[at] = static_cast<float>(exp(static_cast<double>(dt) * a.a[h]));
    }
}

// One thread block per group and token.
__global__ void __launch_bounds__(mamba_threads) mamba_gate_backward_kernel(const __grid_constant__ MambaBackArgs a) {
    extern __shared__ float gated[];
    __shared__ float of_warp[2][mamba_warps];
    const int64_t token = blockIdx.y;
    const int width = a.inner / a.groups, first = static_cast<int>(blockIdx.x) * width;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const auto z_of = [&](int j) { return bf16_to_float(a.projected[token * a.stride + first + j]); };
    const auto y_of = [&](int j) {
        const int at = first + j;
        return fmaf(a.d[at / a.head_dim], bf16_to_float(a.xbc[token * a.channels + at]), a.y[token * a.inner + at]);
    };
    const auto sum_of = [&](float value, int which) {
        value = all_lanes(value);
        if (lane == 0) of_warp[which][warp] = value;
        __syncthreads();
        float sum = 0.0f;
        for (int w = 0; w < mamba_warps; ++w) sum += of_warp[which][w];
        return sum;
    };
    float squares = 0.0f, dot = 0.0f;
    for (int j = thread; j < width; j += mamba_threads) {
        const float g = silu(z_of(j)) * y_of(j);
        gated[j] = g;
        squares = fmaf(g, g, squares);
        dot = fmaf(bf16_to_float(a.d_mixed[token * a.inner + first + j]) * a.norm[first + j], g, dot);
    }
    const float scale = 1.0f / sqrtf(sum_of(squares, 0) / static_cast<float>(width) + a.eps);
    const float back = sum_of(dot, 1) / static_cast<float>(width) * scale * scale;
    for (int j = thread; j < width; j += mamba_threads) {
        const int64_t at = token * a.inner + first + j;
        const float g = gated[j], d = bf16_to_float(a.d_mixed[at]), z = z_of(j);
        const float d_gated = scale * (d * a.norm[first + j] - g * back);
        const ValueAndSlope v = value_and_slope(0, z);
        a.part[at] = d * (g * scale);
        a.d_projected[token * a.stride + first + j] = bf16_from_float(d_gated * y_of(j) * v.slope);
        a.dy[at] = d_gated * v.value;
    }
}

// One thread block per token: dB or dC of a group as the sum over its heads, ascending; and for each head the product
// with B or C, one warp per head.
__global__ void __launch_bounds__(mamba_threads)
    mamba_group_sums_kernel(const __grid_constant__ MambaBackArgs a, bool of_c, float* dots) {
    const int64_t token = blockIdx.x;
    const int each = a.heads / a.groups, all = a.groups * a.state, lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t at = token * a.channels + a.inner + (of_c ? all : 0);
    const float* part = a.part + token * a.heads * a.state;
    for (int i = static_cast<int>(threadIdx.x); i < all; i += mamba_threads) {
        const int group = i / a.state, s = i % a.state;
        float sum = 0.0f;
        for (int h = 0; h < each; ++h) sum += part[(group * each + h) * a.state + s];
        a.d_xbc[at + i] = sum;
    }
    for (int h = static_cast<int>(threadIdx.x) / 32; h < a.heads; h += mamba_warps) {
        float dot = 0.0f;
        for (int s = lane; s < a.state; s += 32)
            dot = fmaf(bf16_to_float(a.xbc[at + h / each * a.state + s]), part[h * a.state + s], dot);
        dot = all_lanes(dot);
        if (lane == 0) dots[token * a.heads + h] = dot;
    }
}

// One thread per segment and head, from the last token to the first.
__global__ void __launch_bounds__(mamba_threads) mamba_decays_kernel(const __grid_constant__ MambaBackArgs a) {
    const int64_t i = int64_t{blockIdx.x} * mamba_threads + threadIdx.x;
    if (i >= int64_t{a.segments} * a.heads) return;
    const StateSegment s = a.list[i / a.heads];
    const int64_t head = i % a.heads;
    double sum = 0;
#pragma unroll 8
    for (int t = s.rows - 1; t > 0; --t) {
        const int64_t at = (int64_t{s.row} + t) * a.heads + head;
        sum += static_cast<double>(a.read[at]) - static_cast<double>(a.written[at]);
        a.read[at] = static_cast<float>(sum);
    }
    a.read[int64_t{s.row} * a.heads + head] = 0.0f;  // the state before the first token is 0
}

// One warp per token and head.
__global__ void __launch_bounds__(mamba_threads) mamba_steps_backward_kernel(const __grid_constant__ MambaBackArgs a) {
    const int64_t i = int64_t{blockIdx.x} * mamba_warps + threadIdx.x / 32;
    if (i >= a.tokens * a.heads) return;
    const int64_t token = i / a.heads, head = i % a.heads;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t at = token * a.inner + head * a.head_dim, x_at = token * a.channels + head * a.head_dim;
    const float dt = a.dt[i], skip = a.d[head];
    float by_dt = 0.0f, by_skip = 0.0f;
    for (int p = lane; p < a.head_dim; p += 32) {
        const float x = bf16_to_float(a.xbc[x_at + p]), du = a.du[at + p], dy = a.dy[at + p];
        by_dt = fmaf(du, x, by_dt);
        by_skip = fmaf(dy, x, by_skip);
        a.d_xbc[x_at + p] = fmaf(du, dt, dy * skip);
    }
    by_dt = all_lanes(by_dt), by_skip = all_lanes(by_skip);
    if (lane > 0) return;
    const int64_t column = token * a.stride + a.inner + a.channels + head;
    const float u = bf16_to_float(a.projected[column]) + a.dt_bias[head], rate = a.a[head], through = a.read[i];
    const float slope = a.dt_min > 0.0f && dt <= a.dt_min ? 0.0f : 1.0f / (1.0f + expf(-u));
    const float d = fmaf(through, rate, by_dt) * slope;
    a.d_projected[column] = bf16_from_float(d);
    a.to_dt_bias[i] = d;
    a.to_a_log[i] = through * dt * rate;  // d decay / d A_log = decay dt a
    a.to_d[i] = by_skip;
}

__global__ void __launch_bounds__(mamba_threads) mamba_silu_backward_kernel(const __grid_constant__ MambaBackArgs a) {
    const int64_t i = int64_t{blockIdx.x} * mamba_threads + threadIdx.x;
    if (i < a.tokens * a.channels) a.d_xbc[i] *= value_and_slope(0, a.raw[i]).slope;
}

// Returns the token whose tap j reads `token`; -1: not in the segment.
__device__ int64_t reader_of(const MambaBackArgs& a, int64_t token, int tap) {
    const int64_t row = token + a.conv - 1 - tap;
    return row < a.tokens && a.first[row] == a.first[token] ? row : -1;
}

__global__ void __launch_bounds__(mamba_threads)
    mamba_convolve_backward_kernel(const __grid_constant__ MambaBackArgs a) {
    const int64_t i = int64_t{blockIdx.x} * mamba_threads + threadIdx.x;
    if (i >= a.tokens * a.channels) return;
    const int64_t token = i / a.channels, c = i % a.channels;
    float sum = 0.0f;
    for (int j = 0; j < a.conv; ++j)
        if (const int64_t row = reader_of(a, token, j); row >= 0)
            sum = fmaf(a.conv_weight[j * a.channels + c], a.d_xbc[row * a.channels + c], sum);
    a.d_projected[token * a.stride + a.inner + c] = bf16_from_float(sum);
}

// One thread per channel and part of the tokens.
__global__ void __launch_bounds__(mamba_threads) mamba_convolve_weight_kernel(const __grid_constant__ MambaBackArgs a) {
    const int c = static_cast<int>(blockIdx.x * mamba_threads + threadIdx.x);
    if (c >= a.channels) return;
    const int64_t each = (a.tokens + conv_parts - 1) / conv_parts, begin = blockIdx.y * each;
    const int64_t end = begin + each < a.tokens ? begin + each : a.tokens;
    float sum[most_taps] = {};
    for (int64_t token = begin; token < end; ++token) {
        const float x = bf16_to_float(a.projected[token * a.stride + a.inner + c]);
#pragma unroll
        for (int j = 0; j < most_taps; ++j) {
            if (j >= a.conv) break;
            if (const int64_t row = reader_of(a, token, j); row >= 0)
                sum[j] = fmaf(x, a.d_xbc[row * a.channels + c], sum[j]);
        }
    }
    float* to = a.conv_sums + (int64_t{blockIdx.y} * a.channels + c) * a.conv;
#pragma unroll
    for (int j = 0; j < most_taps; ++j)
        if (j < a.conv) to[j] = sum[j];
}

__global__ void __launch_bounds__(mamba_threads)
    mamba_parameters_kernel(int channels, int conv, int heads, const float* from, const float* a_log, float* to,
                            float* a) {
    const int64_t i = int64_t{blockIdx.x} * mamba_threads + threadIdx.x;
    if (i < int64_t{channels} * conv) to[i % conv * channels + i / conv] = from[i];
    if (i < heads) a[i] = static_cast<float>(-exp(static_cast<double>(a_log[i])));
}

}  // namespace

cudaError_t launch_mamba_inputs(const MambaBackArgs& a, cudaStream_t stream) {
    mamba_inputs_kernel<<<ceil_blocks(a.tokens * (a.channels + a.heads), mamba_threads), mamba_threads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_mamba_gate_back(const MambaBackArgs& a, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(a.groups), static_cast<unsigned>(a.tokens));
    mamba_gate_backward_kernel<<<blocks, mamba_threads, 4 * (a.inner / a.groups), stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_mamba_group_sums(const MambaBackArgs& a, bool of_c, cudaStream_t stream) {
    mamba_group_sums_kernel<<<static_cast<unsigned>(a.tokens), mamba_threads, 0, stream>>>(a, of_c,
                                                                                           of_c ? a.read : a.written);
    return cudaGetLastError();
}

cudaError_t launch_mamba_decays(const MambaBackArgs& a, cudaStream_t stream) {
    mamba_decays_kernel<<<ceil_blocks(int64_t{a.segments} * a.heads, mamba_threads), mamba_threads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_mamba_steps_back(const MambaBackArgs& a, cudaStream_t stream) {
    mamba_steps_backward_kernel<<<ceil_blocks(a.tokens * a.heads, mamba_warps), mamba_threads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_mamba_conv_back(const MambaBackArgs& a, float* d_weight, cudaStream_t stream) {
    const unsigned blocks = ceil_blocks(a.tokens * a.channels, mamba_threads);
    mamba_silu_backward_kernel<<<blocks, mamba_threads, 0, stream>>>(a);
    if (const cudaError_t code = cudaGetLastError()) return code;
    mamba_convolve_backward_kernel<<<blocks, mamba_threads, 0, stream>>>(a);
    if (const cudaError_t code = cudaGetLastError(); code || !d_weight) return code;
    mamba_convolve_weight_kernel<<<dim3(ceil_blocks(a.channels, mamba_threads), conv_parts), mamba_threads, 0,
                                   stream>>>(a);
    if (const cudaError_t code = cudaGetLastError()) return code;
    return launch_sum_parts(a.conv_sums, conv_parts, int64_t{a.channels} * a.conv, d_weight, stream);
}

cudaError_t launch_mamba_parameters(int channels, int conv, int heads, const float* from, const float* a_log,
                                    float* conv_weight, float* a, cudaStream_t stream) {
    const int64_t all = int64_t{channels} * conv;
    mamba_parameters_kernel<<<ceil_blocks(all > heads ? all : heads, mamba_threads), mamba_threads, 0, stream>>>(
        channels, conv, heads, from, a_log, conv_weight, a);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
