// The scan of Mamba-2 over 16-bit states, in the order of kernels/ssm.h.
#include "formats/stochastic.h"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/ssm/ssm_launch.h"

namespace nibble::cuda {
namespace {

constexpr int scan_tokens = 8;

// A 16-bit state.
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
    static __device__ uint16_t nearest_code(float x) {
        return Format == SsmStateFormat::bf16 ? bf16_from_float(x) : fp16_from_float(x);
    }
};

// Number of Philox blocks per head and token; SsmNarrow defines the bits of each element.
__host__ __device__ constexpr int draw_blocks(int state, int head_dim) {
    return (state * ((head_dim + 15) / 16 * 16) + 127) / 128 * 16;
}

// One thread block per segment and head, one thread per element p of the head, with its column of the state in
// registers. Shared memory: B, C [tokens][State] and x, dt, decay of a few tokens; a token's draws.
template <int State, SsmStateFormat Format>
__global__ void mamba_scan_narrow_state_kernel(const __grid_constant__ SsmArgs args) {
    __shared__ float b[scan_tokens][State], c[scan_tokens][State], step[scan_tokens][2];
    extern __shared__ __align__(16) uint4 draws[];
    using Narrow = NarrowState<Format>;
    start(args.overlap);
    const StateSegment s = args.list[blockIdx.y];
    const int head = static_cast<int>(blockIdx.x), p = static_cast<int>(threadIdx.x), block = blockDim.x;
    const int group = head / (args.heads / args.groups);
    const bool own = p < args.head_dim;
    uint16_t* kept = s.state ? reinterpret_cast<uint16_t*>(s.state + int64_t{args.conv - 1} * args.channels) +
                                   int64_t{head} * args.state * args.head_dim + p
                             : nullptr;
    float state[State];
#pragma unroll
    for (int i = 0; i < State; ++i) {
        const bool present = own && kept && i < args.state;
        state[i] = present ? Narrow::value(kept[int64_t{i} * args.head_dim]) : 0.0f;
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
                uint32_t random = 0;
                if constexpr (Narrow::stochastic) {
                    const int e = min(i, args.state - 1) * pitch + p;
                    random = reinterpret_cast<const uint16_t*>(draws)[(e / 128 * 16 + e % 16) * 8 + e / 16 % 8];
                }
                state[i] = Narrow::value(Narrow::code(state[i], random));
            }
            args.y[token * args.inner + head * args.head_dim + p] = fmaf(d, x, acc);
        }
    }
    if (!own || !kept) return;
#pragma unroll
    for (int i = 0; i < State; ++i) {
        if (i >= args.state) break;
        kept[int64_t{i} * args.head_dim] = Narrow::nearest_code(state[i]);
    }
}

template <int State, SsmStateFormat Format>
cudaError_t launch_scan(const SsmArgs& args, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(args.heads), static_cast<unsigned>(args.segments));
    const int block = (args.head_dim + 31) / 32 * 32;
    int bytes = 0;
    if (NarrowState<Format>::stochastic) {
        bytes = draw_blocks(args.state, args.head_dim) * int{sizeof(uint4)};
        if (const cudaError_t code = cudaFuncSetAttribute(mamba_scan_narrow_state_kernel<State, Format>,
                                                          cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
            return code;
    }
    return launch_kernel(mamba_scan_narrow_state_kernel<State, Format>, blocks, block, bytes, args, stream);
}

template <int State>
cudaError_t launch_scan(const SsmArgs& args, cudaStream_t stream) {
    switch (args.format) {
        case SsmStateFormat::bf16:
            return launch_scan<State, SsmStateFormat::bf16>(args, stream);
        case SsmStateFormat::fp16:
            return launch_scan<State, SsmStateFormat::fp16>(args, stream);
        case SsmStateFormat::fp16_stochastic:
            return launch_scan<State, SsmStateFormat::fp16_stochastic>(args, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

}  // namespace

cudaError_t launch_narrow_scan(const SsmArgs& args, cudaStream_t stream) {
    if (args.state <= 16) return launch_scan<16>(args, stream);
    if (args.state <= 64) return launch_scan<64>(args, stream);
    if (args.state <= 128 && args.head_dim <= 256) return launch_scan<128>(args, stream);
    return cudaErrorInvalidValue;
}

}  // namespace nibble::cuda
