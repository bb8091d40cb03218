// Mamba-2: the orders of kernels/ssm.h, one output a thread.
#include "formats/stochastic.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/ssm_launch.h"
#include "kernels/cuda/ssm_step.cuh"

#include <type_traits>

namespace nibble::cuda {
namespace {

constexpr int threads = 128, scan_tokens = 8;

// Channel c at token t of a segment, t >= -(conv - 1).
__device__ float conv_input(const SsmArgs& args, const SsmSegment& s, int64_t t, int c) {
    if (t >= 0) return rounded(args.projected[(s.row + t) * args.stride + args.inner + c]);
    return s.state ? s.state[(args.conv - 1 + t) * args.channels + c] : 0.0f;
}

__global__ void __launch_bounds__(threads) convolve_kernel(const __grid_constant__ SsmArgs args) {
    start(args.overlap);
    const SsmSegment s = args.list[blockIdx.z];
    const int c = static_cast<int>(blockIdx.x * threads + threadIdx.x);
    if (c >= args.channels) return;
    for (int64_t t = blockIdx.y; t < s.rows; t += gridDim.y) {
        float acc = args.conv_bias ? args.conv_bias[c] : 0.0f;
        for (int j = 0; j < args.conv; ++j)
            acc = fmaf(args.conv_weight[j * args.channels + c], conv_input(args, s, t - (args.conv - 1) + j, c), acc);
        args.xbc[(s.row + t) * args.channels + c] = bf16_from_float(silu(acc));
    }
}

__global__ void __launch_bounds__(threads) steps_kernel(const __grid_constant__ SsmArgs args, int64_t step_blocks) {
    start(args.overlap);
    if (blockIdx.x < step_blocks) {
        const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
        if (i >= args.tokens * args.heads) return;
        const int64_t token = i / args.heads;
        const int h = static_cast<int>(i % args.heads);
        const float dt = step_size(args, args.projected[token * args.stride + args.inner + args.channels + h], h);
        args.dt[i] = dt;
        args.decay[i] = step_decay(args, dt, h);
        return;
    }
    const int64_t i = (int64_t{blockIdx.x} - step_blocks) * threads + threadIdx.x;
    if (i >= int64_t{args.segments} * args.channels) return;
    const SsmSegment s = args.list[i / args.channels];
    const int c = static_cast<int>(i % args.channels);
    if (!s.state) return;
    for (int j = 0; j < args.conv - 1; ++j)  // ascending: what moves down is read before it is overwritten
        s.state[int64_t{j} * args.channels + c] = conv_input(args, s, s.rows - (args.conv - 1) + j, c);
}

// A state of 16 bits.
template <SsmStateFormat Format>
struct NarrowState {
    static constexpr bool stochastic = Format == SsmStateFormat::fp16_stochastic;
    static __device__ float value(uint16_t code) {
        return Format == SsmStateFormat::bf16 ? bf16_to_float(code) : fp16_to_float(code);
    }
    static __device__ uint16_t code(float x, uint32_t random) {
        if constexpr (Format == SsmStateFormat::bf16) return bf16_from_float(x);
        if constexpr (stochastic) return fp16_stochastic(x, random);
        return fp16_from_float(x);
    }
    static __device__ uint16_t exact(float x) {
        return Format == SsmStateFormat::bf16 ? bf16_from_float(x) : fp16_from_float(x);
    }
};

// Philox blocks of a head and a token; SsmNarrow says which element takes which 16 bits.
__host__ __device__ constexpr int draw_blocks(int state, int head_dim) {
    return (state * ((head_dim + 15) / 16 * 16) + 127) / 128 * 16;
}

// A thread block per segment and head, a thread per element p of the head, its column of the state in registers.
// Shared memory: B, C [tokens][State] and x, dt, decay of a few tokens; a token's draws.
template <int State, SsmStateFormat Format>
__global__ void scan_kernel(const __grid_constant__ SsmArgs args) {
    __shared__ float b[scan_tokens][State], c[scan_tokens][State], step[scan_tokens][2];
    extern __shared__ __align__(16) uint4 draws[];
    constexpr bool narrow = Format != SsmStateFormat::f32;
    using Narrow = NarrowState<Format>;
    start(args.overlap);
    const SsmSegment s = args.list[blockIdx.y];
    const int head = static_cast<int>(blockIdx.x), p = static_cast<int>(threadIdx.x), block = blockDim.x;
    const int group = head / (args.heads / args.groups);
    const bool own = p < args.head_dim;
    using Kept = std::conditional_t<narrow, uint16_t, float>;
    Kept* kept = s.state ? reinterpret_cast<Kept*>(s.state + int64_t{args.conv - 1} * args.channels) +
                               int64_t{head} * args.state * args.head_dim + p
                         : nullptr;
    float state[State];
#pragma unroll
    for (int i = 0; i < State; ++i) {
        const bool present = own && kept && i < args.state;
        if constexpr (narrow)
            state[i] = present ? Narrow::value(kept[int64_t{i} * args.head_dim]) : 0.0f;
        else
            state[i] = present ? kept[int64_t{i} * args.head_dim] : 0.0f;
    }
    const int pitch = (args.head_dim + 15) / 16 * 16, blocks = draw_blocks(args.state, args.head_dim);
    const float d = args.d[head];
    for (int first = 0; first < s.rows; first += scan_tokens) {
        const int here = min(scan_tokens, s.rows - first);
        __syncthreads();
        for (int i = p; i < here * State; i += block) {
            const int t = i / State, j = i % State;
            const uint16_t* row = args.xbc + (int64_t{s.row} + first + t) * args.channels + args.inner;
            const bool present = j < args.state;
            b[t][j] = present ? bf16_to_float(row[group * args.state + j]) : 0.0f;
            c[t][j] = present ? bf16_to_float(row[(args.groups + group) * args.state + j]) : 0.0f;
        }
        if (p < here) {
            const int64_t at = (int64_t{s.row} + first + p) * args.heads + head;
            step[p][0] = args.decay[at], step[p][1] = args.dt[at];
        }
        __syncthreads();
        if (!own && !Narrow::stochastic) continue;
        for (int t = 0; t < here; ++t) {
            const int64_t token = int64_t{s.row} + first + t;
            if constexpr (Narrow::stochastic) {
                const uint64_t base =
                    (static_cast<uint64_t>(s.position + first + t) * static_cast<uint64_t>(args.heads) +
                     static_cast<uint64_t>(head)) *
                    static_cast<uint64_t>(blocks);
                __syncthreads();
                for (int i = p; i < blocks; i += block) {
                    const PhiloxBlock draw = args.stream.block(base + static_cast<uint64_t>(i));
                    draws[i] = {draw.word[0], draw.word[1], draw.word[2], draw.word[3]};
                }
                __syncthreads();
                if (!own) continue;
            }
            const float x = bf16_to_float(args.xbc[token * args.channels + head * args.head_dim + p]);
            const float decay = step[t][0], u = step[t][1] * x;
            float acc = 0.0f;
#pragma unroll
            for (int i = 0; i < State; ++i) {
                const float rest = decay * state[i];
                state[i] = fmaf(u, b[t][i], rest);
                acc = fmaf(state[i], c[t][i], acc);
                if constexpr (narrow) {
                    uint32_t random = 0;
                    if constexpr (Narrow::stochastic) {
                        const int e = min(i, args.state - 1) * pitch + p;
                        random = reinterpret_cast<const uint16_t*>(draws)[(e / 128 * 16 + e % 16) * 8 + e / 16 % 8];
                    }
                    state[i] = Narrow::value(Narrow::code(state[i], random));
                }
            }
            args.y[token * args.inner + head * args.head_dim + p] = fmaf(d, x, acc);
        }
    }
    if (!own || !kept) return;
#pragma unroll
    for (int i = 0; i < State; ++i) {
        if (i >= args.state) break;
        if constexpr (narrow)
            kept[int64_t{i} * args.head_dim] = Narrow::exact(state[i]);
        else
            kept[int64_t{i} * args.head_dim] = state[i];
    }
}

// A thread block per token and group.
__global__ void gate_kernel(const __grid_constant__ SsmArgs args) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared_scale;
    start(args.overlap);
    const int64_t token = blockIdx.y;
    const int width = args.inner / args.groups, pitch = lane_pitch(width), at = static_cast<int>(blockIdx.x) * width;
    for (int j = static_cast<int>(threadIdx.x); j < width; j += static_cast<int>(blockDim.x))
        *lane_place(row, pitch, j) =
            silu(rounded(args.projected[token * args.stride + at + j])) * args.y[token * args.inner + at + j];
    __syncthreads();
    if (threadIdx.x < 32) {
        const float scale = norm_scale(row, width, args.eps);
        if (threadIdx.x == 0) shared_scale = scale;
    }
    __syncthreads();
    const float r = shared_scale;
    for (int j = static_cast<int>(threadIdx.x); j < width; j += static_cast<int>(blockDim.x))
        args.out[token * args.inner + at + j] = bf16_from_float((*lane_place(row, pitch, j) * r) * args.norm[at + j]);
}

}  // namespace

cudaError_t launch_convolve(const SsmArgs& args, cudaStream_t stream) {
    const dim3 blocks(ceil_blocks(args.channels, threads),
                      static_cast<unsigned>(args.longest < 1024 ? args.longest : 1024),
                      static_cast<unsigned>(args.segments));
    return launch_kernel(convolve_kernel, blocks, threads, 0, args, stream);
}

cudaError_t launch_steps(const SsmArgs& args, cudaStream_t stream) {
    const int64_t step_blocks = ceil_blocks(args.tokens * args.heads, threads);
    const auto blocks = static_cast<unsigned>(
        step_blocks + ceil_blocks(args.conv > 1 ? int64_t{args.segments} * args.channels : 0, threads));
    steps_kernel<<<blocks, threads, 0, stream>>>(args, step_blocks);
    return cudaGetLastError();
}

namespace {

template <int State, SsmStateFormat Format>
cudaError_t launch_scan(const SsmArgs& args, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.segments));
    const int block = (args.head_dim + 31) / 32 * 32;
    int bytes = 0;
    if (NarrowState<Format>::stochastic) {
        bytes = draw_blocks(args.state, args.head_dim) * int{sizeof(uint4)};
        if (const cudaError_t code =
                cudaFuncSetAttribute(scan_kernel<State, Format>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
            return code;
    }
    return launch_kernel(scan_kernel<State, Format>, blocks, block, bytes, args, stream);
}

template <int State>
cudaError_t launch_scan(const SsmArgs& args, cudaStream_t stream) {
    switch (args.format) {
        case SsmStateFormat::f32:
            return launch_scan<State, SsmStateFormat::f32>(args, stream);
        case SsmStateFormat::bf16:
            return launch_scan<State, SsmStateFormat::bf16>(args, stream);
        case SsmStateFormat::fp16:
            return launch_scan<State, SsmStateFormat::fp16>(args, stream);
        case SsmStateFormat::fp16_stochastic:
            return launch_scan<State, SsmStateFormat::fp16_stochastic>(args, stream);
    }
    return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t launch_ssm_scan(const SsmArgs& args, cudaStream_t stream) {
    if (args.state <= 16) return launch_scan<16>(args, stream);
    if (args.state <= 64) return launch_scan<64>(args, stream);
    if (args.state <= 128 && args.head_dim <= 256) return launch_scan<128>(args, stream);
    return cudaErrorInvalidValue;
}

cudaError_t launch_gate(const SsmArgs& args, cudaStream_t stream) {
    const int width = args.inner / args.groups, bytes = norm_shared_bytes(width);
    if (bytes > 48 * 1024)
        if (const cudaError_t code =
                cudaFuncSetAttribute(gate_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024))
            return code;
    return launch_kernel(gate_kernel, dim3(static_cast<unsigned>(args.groups), static_cast<unsigned>(args.tokens)),
                         width >= 1024 ? 256 : 128, bytes, args, stream);
}

}  // namespace nibble::cuda
