// Mamba-2 between its two products for one token of every sequence, as one kernel: convolution, steps, scan and gated
// norm with the operations and orders of ssm.cu, so the bits are the same. One thread block per sequence and head. The
// heads of a norm's group form a cluster, which shares the gated outputs and convolves the group's B and C once.
//
// States and histories are read before the previous kernel ends: only earlier steps write them.
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/ptx.cuh"
#include "kernels/cuda/ssm/ssm_launch.h"
#include "kernels/cuda/ssm/ssm_step.cuh"

namespace nibble::cuda {
namespace {

constexpr int threads = 128, most_taps = 4, most_head_dim = 128;
// With all 128 states of a column, a thread used 206 registers and a multiprocessor held two thread blocks. At 64
// sequences the separate scan kernel, with more blocks, updated their states faster (7.5 instead of 8.4 ms per token
// for the shape of Nemotron-3-Nano).
constexpr int most_segments = 8;

// Halves = 2: two threads share a column's states, and the second continues the sum of the first. Blocks of the
// previous and next products then fit on the multiprocessor too, so states are read while the previous kernel still
// runs.
template <int State, int Halves>
__global__ void __launch_bounds__(threads, Halves == 2 ? 4 : 1)
    mamba_decode_kernel(const __grid_constant__ SsmArgs args) {
    constexpr int own_states = State / Halves;
    constexpr int each = (most_head_dim + 2 * State + threads - 1) / threads;  // channels per thread
    __shared__ __align__(16) float b[State], c[State];
    __shared__ float xs[most_head_dim], gated[most_head_dim], partial[most_head_dim], gates[most_head_dim];
    __shared__ float step[2], shared_scale;
    extern __shared__ __align__(16) float row[];
    if (args.overlap) overlap_next();
    const StateSegment s = args.list[blockIdx.y];
    const int head = static_cast<int>(blockIdx.x), p = static_cast<int>(threadIdx.x);
    const int size = args.heads / args.groups, group = head / size, rank = head % size;
    const int own_channels = args.head_dim + 2 * args.state;
    const int half = Halves == 2 && p >= args.head_dim, first = half * own_states, column = p - half * args.head_dim;
    const bool own = p < Halves * args.head_dim, ends = own && half == Halves - 1;
    float* const kept = s.state ? s.state + int64_t{args.conv - 1} * args.channels +
                                      (int64_t{head} * args.state + first) * args.head_dim + column
                                : nullptr;
    float state[own_states];
#pragma unroll
    for (int i = 0; i < own_states; ++i)
        state[i] = own && kept && first + i < args.state ? kept[int64_t{i} * args.head_dim] : 0.0f;
    // The block's channels: x of the head, then B and C of the group.
    const auto channel = [&](int i) {
        if (i < args.head_dim) return head * args.head_dim + i;
        i -= args.head_dim;
        return args.inner + (i < args.state ? group * args.state + i : (args.groups + group - 1) * args.state + i);
    };
    float taps[each][most_taps], weight[each][most_taps], bias[each];
#pragma unroll
    for (int k = 0; k < each; ++k) {
        const int at = channel(min(p + k * threads, own_channels - 1));
        bias[k] = args.conv_bias ? args.conv_bias[at] : 0.0f;
#pragma unroll
        for (int j = 0; j < most_taps; ++j) {
            weight[k][j] = j < args.conv ? args.conv_weight[j * args.channels + at] : 0.0f;
            taps[k][j] = s.state && j < args.conv - 1 ? s.state[j * args.channels + at] : 0.0f;
        }
    }
    const float d = args.d[head], norm = p < args.head_dim && args.norm ? args.norm[head * args.head_dim + p] : 0.0f;
    if (args.overlap) wait_for_previous();

    const float* projected = args.projected + s.row * args.stride;
    float fresh[each];
#pragma unroll
    for (int k = 0; k < each; ++k) fresh[k] = projected[args.inner + channel(min(p + k * threads, own_channels - 1))];
    const float z = ends ? projected[head * args.head_dim + column] : 0.0f;
    if (p == threads - 1) {
        const float dt = step_size(args, projected[args.inner + args.channels + head], head);
        step[0] = step_decay(args, dt, head), step[1] = dt;
    }
#pragma unroll
    for (int k = 0; k < each; ++k) {
        fresh[k] = rounded(fresh[k]);
        float acc = bias[k];
#pragma unroll
        for (int j = 0; j < most_taps; ++j)
            if (j < args.conv) acc = fmaf(weight[k][j], j == args.conv - 1 ? fresh[k] : taps[k][j], acc);
        const float value = rounded(silu(acc));
        const int i = p + k * threads, of_state = i - args.head_dim;
        if (i < args.head_dim)
            xs[i] = value;
        else if (of_state < args.state)
            b[of_state] = value;
        else if (i < own_channels)
            c[of_state - args.state] = value;
    }
    for (int i = args.state + p; i < State; i += threads) b[i] = c[i] = 0.0f;
    __syncthreads();
    // Stores the gate of a column, and y as the norm reads it.
    const auto store = [&](float y) {
        const float gate = silu(rounded(z));
        gates[column] = gate;
        gated[column] = args.order == SsmNorm::before_gate ? y : gate * y;
    };
    if (own) {
        const float x = xs[column], decay = step[0], u = step[1] * x;
        float acc = 0.0f;
#pragma unroll
        for (int i = 0; i < own_states; ++i) {
            const float rest = decay * state[i];
            state[i] = fmaf(u, b[first + i], rest);
            if (half == 0) acc = fmaf(state[i], c[first + i], acc);
        }
        if (Halves == 2 && half == 0) partial[column] = acc;
        if (Halves == 1) store(fmaf(d, x, acc));
    }
    if constexpr (Halves == 2) {
        __syncthreads();
        if (ends) {
            float acc = partial[column];
#pragma unroll
            for (int i = 0; i < own_states; ++i) acc = fmaf(state[i], c[first + i], acc);
            store(fmaf(d, xs[column], acc));
        }
    }
    cluster_sync();
    const int width = args.inner / args.groups, pitch = lane_pitch(width);
    for (int j = p; j < width; j += threads)
        *lane_place(row, pitch, j) =
            cluster_float(shared_address(gated + j % args.head_dim), static_cast<uint32_t>(j / args.head_dim));
    __syncthreads();
    cluster_arrive();
    if (p < 32) {
        const float scale = norm_scale(row, width, args.eps);
        if (p == 0) shared_scale = scale;
    }
    __syncthreads();
    if (p < args.head_dim) {
        float x = gated[p];
        if (args.order != SsmNorm::none) x = (x * shared_scale) * norm;
        if (args.order == SsmNorm::before_gate) x = gates[p] * rounded(x);
        args.out[int64_t{s.row} * args.inner + head * args.head_dim + p] = bf16_from_float(x);
    }
    // All reads of this token's history are done.
    if (s.state) {
#pragma unroll
        for (int k = 0; k < each; ++k) {
            const int i = p + k * threads;
            const bool mine =
                i < args.head_dim || (i < own_channels && (i - args.head_dim) * size / (2 * args.state) == rank);
            if (!mine) continue;
            const int at = channel(i);
#pragma unroll
            for (int j = 0; j < most_taps - 1; ++j)
                if (j < args.conv - 1)
                    s.state[j * args.channels + at] = j + 1 == args.conv - 1 ? fresh[k] : taps[k][j + 1];
        }
    }
    if (own && kept) {
#pragma unroll
        for (int i = 0; i < own_states; ++i)
            if (first + i < args.state) kept[int64_t{i} * args.head_dim] = state[i];
    }
    cluster_wait();  // keeps shared memory alive until all blocks have read it
}

template <int State, int Halves>
cudaError_t launch(const SsmArgs& args, cudaStream_t stream) {
    const int cluster = args.heads / args.groups;
    if (const cudaError_t code = prefer_shared_memory(mamba_decode_kernel<State, Halves>)) return code;
    return launch_kernel(mamba_decode_kernel<State, Halves>,
                         dim3(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.segments)), threads,
                         norm_shared_bytes(args.inner / args.groups), args, stream, cluster);
}

}  // namespace

bool ssm_decodes(const SsmArgs& args) {
    const int size = args.heads / args.groups;
    return args.longest == 1 && args.segments <= most_segments && args.format == SsmStateFormat::f32 &&
           args.conv <= most_taps && args.head_dim <= most_head_dim && args.state <= 128 &&
           (size == 1 || size == 2 || size == 4 || size == 8) &&
           norm_shared_bytes(args.inner / args.groups) <= 40 * 1024;
}

cudaError_t launch_ssm_decode(const SsmArgs& args, cudaStream_t stream) {
    const auto go = [&](auto narrow, auto wide) {
        return (2 * args.head_dim <= threads ? narrow : wide)(args, stream);
    };
    if (args.state <= 16) return go(launch<16, 2>, launch<16, 1>);
    if (args.state <= 64) return go(launch<64, 2>, launch<64, 1>);
    return go(launch<128, 2>, launch<128, 1>);
}

}  // namespace nibble::cuda
