// A gated delta net before and after its rule, in the orders of kernels/delta_rule.h and kernels/ssm.h.
#include "kernels/cuda/delta/delta_columns.cuh"

namespace nibble::cuda {
namespace {

constexpr int threads = 128, most_dim = 256;

// Taps: of the convolution at most. One thread block per key head and `Run` tokens: convolves the head's q and k and
// its value heads, scales q and k to unit length, and computes decay and beta of the value heads.
template <int Run, int Taps>
__global__ void __launch_bounds__(threads) delta_inputs_kernel(const __grid_constant__ DeltaArgs args) {
    __shared__ __align__(16) float rows[2 * Run][norm_shared_bytes(most_dim) / 4];  // q and k of each token
    start(args.overlap);
    const StateSegment s = args.list[blockIdx.z];
    const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    const int values = args.per_key * args.value_dim, pitch = lane_pitch(args.key_dim);
    const Convolution convolution = convolution_of(args);
    const int before = args.conv - 1;
    for (int begin = static_cast<int>(blockIdx.y) * Run; begin < s.rows; begin += static_cast<int>(gridDim.y) * Run) {
        const int tokens = min(Run, s.rows - begin);
        const int64_t first = int64_t{s.row} + begin;
        // A thread's tokens follow each other, so it reads each input once.
        for (int i = thread; i < 2 * args.key_dim + values; i += threads) {
            const int of_k = i >= args.key_dim;
            const int c = i < 2 * args.key_dim ? of_k * args.keys + head * args.key_dim + i - of_k * args.key_dim
                                               : 2 * args.keys + head * values + i - 2 * args.key_dim;
            const int column = channel_column(args, c);
            float weight[Taps], window[Taps];  // inputs of the tokens before, oldest first
#pragma unroll
            for (int j = 0; j < Taps; ++j) {
                weight[j] = j < args.conv ? args.conv_weight[int64_t{j} * args.channels + c] : 0.0f;
                window[j] = j < before ? convolution.input(s, begin - before + j, c, column) : 0.0f;
            }
#pragma unroll 1  // unrolled, it takes 124 registers and more time
            for (int t = 0; t < tokens; ++t) {
                const float newest = convolution.input(s, begin + t, c, column);
                float sum = 0.0f;
#pragma unroll
                for (int j = 0; j < Taps; ++j)
                    if (j < args.conv) sum = fmaf(weight[j], j == before ? newest : window[j], sum);
#pragma unroll
                for (int j = 0; j + 1 < Taps; ++j) window[j] = j + 1 == before ? newest : window[j + 1];
                const uint16_t value = bf16_from_float(silu(sum));
                if (i < 2 * args.key_dim)
                    *lane_place(rows[2 * t + of_k], pitch, i - of_k * args.key_dim) = bf16_to_float(value);
                else
                    args.v[(first + t) * args.inner + c - 2 * args.keys] = value;
            }
        }
        for (int i = thread; i < tokens * args.per_key; i += threads) {
            const int64_t token = first + i / args.per_key;
            const int h = head * args.per_key + i % args.per_key;
            args.steps[token * args.value_heads + h] = delta_steps(args, args.gates + token * args.gates_stride, h);
        }
        for (int i = thread; args.by_channel && i < tokens * args.padded_key; i += threads) {
            const int64_t token = first + i / args.padded_key;
            const int at = i % args.padded_key, c = head * args.key_dim + at;
            args.decays[(token * args.key_heads + head) * args.padded_key + key_place(at)] =
                at < args.key_dim ? decay_of(args.channel_gates[token * args.keys + c], args.dt_bias[c], args.a[head])
                                  : 1.0f;
        }
        __syncthreads();
        for (int row = thread / 32; row < 2 * tokens; row += threads / 32) {
            const int of_k = row % 2;
            const float r = norm_scale(rows[row], args.key_dim, args.unit_eps);
            const float scale = of_k ? args.k_scale : args.q_scale;
            float* out = (of_k ? args.k : args.q) + ((first + row / 2) * args.key_heads + head) * args.padded_key;
            for (int i = thread % 32; i < args.padded_key; i += 32)
                out[key_place(i)] = i < args.key_dim ? (*lane_place(rows[row], pitch, i) * r) * scale : 0.0f;
        }
        __syncthreads();
    }
}

// Half a warp per token and value head: RMSNorm, then the gate.
__global__ void __launch_bounds__(threads) delta_gate_kernel(const __grid_constant__ DeltaArgs args) {
    constexpr int each = most_dim / sum_lanes;
    start(args.overlap);
    const int64_t unit = int64_t{blockIdx.x} * (threads / sum_lanes) + threadIdx.x / sum_lanes;
    const int lane = static_cast<int>(threadIdx.x) % sum_lanes;
    const bool present = unit < args.tokens * args.value_heads;
    const int64_t token = present ? unit / args.value_heads : 0;
    const int first = present ? static_cast<int>(unit % args.value_heads) * args.value_dim : 0;
    const uint16_t* y = args.y + token * args.inner + first;
    float x[each], sum = 0.0f;
#pragma unroll
    for (int j = 0; j < each; ++j) {
        const int i = lane + j * sum_lanes;
        x[j] = i < args.value_dim ? bf16_to_float(y[i]) : 0.0f;
        if (i < args.value_dim) sum = fmaf(x[j], x[j], sum);
    }
#pragma unroll
    for (int half = sum_lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
    const float r = 1.0f / sqrtf(sum / static_cast<float>(args.value_dim) + args.eps);
    if (!present) return;
    const float* row = args.by_channel ? args.z + token * args.inner : args.projected + token * args.stride;
#pragma unroll
    for (int j = 0; j < each; ++j) {
        const int i = lane + j * sum_lanes;
        if (i >= args.value_dim) break;
        const float normed = rounded((x[j] * r) * args.norm[i]);
        const float z = rounded(row[args.by_channel ? first + i : z_column(args, first + i)]);
        args.out[token * args.inner + first + i] =
            bf16_from_float(args.by_channel ? normed / (1.0f + exp_of(-z)) : silu(z) * normed);
    }
}

}  // namespace

cudaError_t launch_delta_inputs(const DeltaArgs& args, cudaStream_t stream) {
    constexpr int run = 8;
    const bool one = args.longest == 1;
    const dim3 blocks(static_cast<unsigned>(args.key_heads), one ? 1 : ceil_blocks(args.longest, run),
                      static_cast<unsigned>(args.segments));
    const auto few = one ? delta_inputs_kernel<1, 4> : delta_inputs_kernel<run, 4>;
    const auto many = one ? delta_inputs_kernel<1, 16> : delta_inputs_kernel<run, 16>;
    return launch_kernel(args.conv <= 4 ? few : many, blocks, threads, 0, args, stream);
}

cudaError_t launch_delta_gate(const DeltaArgs& args, cudaStream_t stream) {
    return launch_kernel(delta_gate_kernel, ceil_blocks(args.tokens * args.value_heads, threads / sum_lanes), threads,
                         0, args, stream);
}

}  // namespace nibble::cuda
