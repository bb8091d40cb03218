// The scan of Mamba-2 over FP32 states in the order of kernels/ssm.h: an output's sum over the states of its column is
// one chain.
//
// A thread block has 32 columns of a head; a warp holds 16 of their states in registers. Tokens are processed in
// chunks: while the first warp processes a chunk, the second adds its states to the first warp's sums of the previous
// chunk, and so on. A chain of 128 operations thus keeps eight warps busy. One thread per column with all of its states
// took 2.9 us per token.
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/ssm/ssm_launch.h"

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int own_states = 16, columns = 32;
// Layout of B, C, decay and dt for a warp's token in shared memory.
constexpr int decay_at = 2 * own_states, token_floats = decay_at + 4;

// A warp's part of a chunk in registers: B and C as [token][B's own_states, C's own_states], `each` per lane; the
// lane's column of x; decays of the tokens in the first lanes, dt in the next ones. Zeros for missing tokens.
template <int Tokens>
struct Chunk {
    static constexpr int each = Tokens * 2 * own_states / 32;
    uint16_t values[each], x[Tokens];
    float step = 0.0f;

    Chunk() = default;
    __device__ Chunk(const SsmArgs& args, const StateSegment& s, int first, int head, int first_state, int column,
                     int lane) {
        const int64_t token = int64_t{s.row} + first;
        const uint16_t* const rows = args.xbc + token * args.channels;
        const int here = s.rows - first, group = head / (args.heads / args.groups);
        const int t = lane * each / (2 * own_states), at = lane * each % (2 * own_states);
        const int of_c = at / own_states, state = first_state + at % own_states;
        const uint16_t* const from =
            rows + int64_t{t} * args.channels + args.inner + (of_c * args.groups + group) * args.state + state;
        const int present = t < here ? args.state - state : 0;
        if (sizeof values == sizeof(uint4) && (args.state | args.inner | args.channels) % each == 0) {
            const uint4 v = present > 0 ? *reinterpret_cast<const uint4*>(from) : uint4{};
            memcpy(values, &v, sizeof values);
        } else {
#pragma unroll
            for (int i = 0; i < each; ++i) values[i] = i < present ? from[i] : uint16_t{0};
        }
        const uint16_t* const of_x = rows + head * args.head_dim + column;
        const int tokens = column < args.head_dim ? here : 0;
#pragma unroll
        for (int i = 0; i < Tokens; ++i) x[i] = i < tokens ? of_x[int64_t{i} * args.channels] : uint16_t{0};
        if (const int i = lane % Tokens; lane < 2 * Tokens && i < here)
            step = (lane < Tokens ? args.decay : args.dt)[(token + i) * args.heads + head];
    }
    // Writes everything except x to [token][token_floats].
    __device__ void spread(float (&to)[Tokens][token_floats], int lane) const {
        float* const at = &to[lane * each / (2 * own_states)][lane * each % (2 * own_states)];
#pragma unroll
        for (int i = 0; i < each; ++i) at[i] = bf16_to_float(values[i]);
        if (lane < 2 * Tokens) to[lane % Tokens][decay_at + lane / Tokens] = step;
    }
};

// Segments of one token are limited by memory: as many threads per multiprocessor as 48 registers allow.
template <int State, int Tokens>
constexpr int least_blocks = Tokens > 1 ? 1 : std::min(640 / State, 32);

template <int State, int Tokens>
__global__ void __launch_bounds__(2 * State, least_blocks<State, Tokens>)
    mamba_scan_kernel(const __grid_constant__ SsmArgs args) {
    constexpr int warps = State / own_states;
    __shared__ __align__(16) float operands[warps][Tokens][token_floats];
    __shared__ float sums[2][warps][Tokens][columns];
    if (args.overlap) overlap_next();
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int blocks = (args.head_dim + columns - 1) / columns;  // per head
    const int head = static_cast<int>(blockIdx.x) / blocks;
    const int column = static_cast<int>(blockIdx.x) % blocks * columns + lane, first_state = warp * own_states;
    const StateSegment s = args.list[blockIdx.y];
    float* const kept = s.state ? s.state + int64_t{args.conv - 1} * args.channels +
                                      (int64_t{head} * args.state + first_state) * args.head_dim + column
                                : nullptr;
    const auto is_kept = [&](int i) { return kept && column < args.head_dim && first_state + i < args.state; };
    float state[own_states];
#pragma unroll
    for (int i = 0; i < own_states; ++i) state[i] = is_kept(i) ? kept[int64_t{i} * args.head_dim] : 0.0f;
    const float d = args.d[head];
    if (args.overlap) wait_for_previous();  // states were written by an earlier step

    const auto chunk_at = [&](int chunk) {
        return Chunk<Tokens>(args, s, chunk * Tokens, head, first_state, column, lane);
    };
    const int chunks = (s.rows + Tokens - 1) / Tokens;
    Chunk<Tokens> now = chunk_at(0), next;
    now.spread(operands[warp], lane);
    if (chunks > 1) next = chunk_at(1);
    __syncwarp();
#pragma unroll 1
    for (int step = 0; step < chunks + warps - 1; ++step) {
        if (const int chunk = step - warp; chunk >= 0 && chunk < chunks) {
            const int here = s.rows - chunk * Tokens;
            const float(*before)[columns] = sums[(step + 1) % 2][max(warp - 1, 0)];
            float(*after)[columns] = sums[step % 2][warp];
            float* y = args.y + (int64_t{s.row} + chunk * Tokens) * args.inner + head * args.head_dim + column;
            float acc[Tokens];
#pragma unroll
            for (int t = 0; t < Tokens; ++t) acc[t] = warp > 0 ? before[t][lane] : 0.0f;
            const auto take = [&](int t) {
                const float* const of = operands[warp][t];
                const float decay = of[decay_at], u = of[decay_at + 1] * bf16_to_float(now.x[t]);
#pragma unroll
                for (int i = 0; i < own_states; ++i) {
                    const float rest = decay * state[i];
                    state[i] = fmaf(u, of[i], rest);
                    acc[t] = fmaf(state[i], of[own_states + i], acc[t]);
                }
            };
            if (here >= Tokens) {  // no branches between tokens, so that their chains overlap
#pragma unroll
                for (int t = 0; t < Tokens; ++t) take(t);
            } else {
#pragma unroll
                for (int t = 0; t < Tokens; ++t)
                    if (t < here) take(t);
            }
            if (warp + 1 < warps) {
#pragma unroll
                for (int t = 0; t < Tokens; ++t) after[t][lane] = acc[t];
            } else if (column < args.head_dim) {
#pragma unroll
                for (int t = 0; t < Tokens; ++t)
                    if (t < here) y[int64_t{t} * args.inner] = fmaf(d, bf16_to_float(now.x[t]), acc[t]);
            }
            if (chunk + 1 < chunks) {
                __syncwarp();
                now = next;
                now.spread(operands[warp], lane);
                if (chunk + 2 < chunks) next = chunk_at(chunk + 2);
                __syncwarp();
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < own_states; ++i)
        if (is_kept(i)) kept[int64_t{i} * args.head_dim] = state[i];
}

template <int State>
cudaError_t launch(const SsmArgs& args, cudaStream_t stream) {
    const auto kernel = args.longest == 1 ? mamba_scan_kernel<State, 1> : mamba_scan_kernel<State, 8>;
    const dim3 blocks(static_cast<unsigned>(args.heads * ((args.head_dim + columns - 1) / columns)),
                      static_cast<unsigned>(args.segments));
    return launch_kernel(kernel, blocks, 2 * State, 0, args, stream);
}

}  // namespace

cudaError_t launch_ssm_scan(const SsmArgs& args, cudaStream_t stream) {
    if (args.format != SsmStateFormat::f32) return launch_narrow_scan(args, stream);
    if (args.state <= 16) return launch<16>(args, stream);
    if (args.state <= 64) return launch<64>(args, stream);
    return launch<128>(args, stream);
}

}  // namespace nibble::cuda
