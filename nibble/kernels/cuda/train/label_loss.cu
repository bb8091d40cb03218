// Log-probabilities of labels and the gradient of the logits. A thread block per row; exponentials are summed in the
// order of kernels/elementwise.h: runs of 4096, lane l of 16 adds elements l, l + 16 ..., a halving tree, run totals in
// FP64.
#include "kernels/cuda/common/elementwise.cuh"
#include "kernels/cuda/train/train_launch.h"

namespace nibble::cuda {
namespace {

constexpr int threads = 512, run = 4096, runs_at_once = 4;
constexpr int run_pitch = run + 16;  // lanes of neighbouring runs in different banks
constexpr int most_runs = 256;       // a vocabulary of 2^20
constexpr int shared_bytes = runs_at_once * run_pitch * 4;

__global__ void __launch_bounds__(threads) label_loss_kernel(const __grid_constant__ LabelLoss l) {
    extern __shared__ float exponentials[];
    __shared__ float totals[most_runs], of_warp[threads / 32];
    __shared__ double sum_of_runs;
    const int64_t row = blockIdx.x;
    const int label = l.labels[row], thread = static_cast<int>(threadIdx.x), vocab = static_cast<int>(l.vocab);
    const float* x = l.logits + row * l.vocab;
    std::byte* out = l.d_logits ? l.d_logits + 2 * row * l.vocab : nullptr;
    const float slope = out ? l.slopes[row] : 0.0f;
    if (label < 0 || (out && slope == 0.0f))
        if (out)
            for (int i = thread; i < vocab / 8; i += threads) reinterpret_cast<uint4*>(out)[i] = {0, 0, 0, 0};
    if (label < 0) {
        if (thread == 0) l.log_probs[row] = 0.0f;
        return;
    }
    float largest = -INFINITY;
    for (int i = thread; i < vocab / 4; i += threads) {
        const float4 v = reinterpret_cast<const float4*>(x)[i];
        largest = fmaxf(largest, fmaxf(fmaxf(rounded(v.x), rounded(v.y)), fmaxf(rounded(v.z), rounded(v.w))));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    if (thread % 32 == 0) of_warp[thread / 32] = largest;
    __syncthreads();
    for (const float v : of_warp) largest = fmaxf(largest, v);
    const int runs = (vocab + run - 1) / run;
    for (int first = 0; first < runs; first += runs_at_once) {
        const int begin = first * run, count = min(runs_at_once * run, vocab - begin);
        for (int i = thread; i < count / 4; i += threads) {
            const float4 v = *reinterpret_cast<const float4*>(x + begin + 4 * i);
            auto* to = reinterpret_cast<float4*>(exponentials + 4 * i / run * run_pitch + 4 * i % run);
            *to = {exp_of(rounded(v.x) - largest), exp_of(rounded(v.y) - largest), exp_of(rounded(v.z) - largest),
                   exp_of(rounded(v.w) - largest)};
        }
        __syncthreads();
        if (thread < runs_at_once * sum_lanes) {
            const int which = thread / sum_lanes, lane = thread % sum_lanes;
            const int here = min(run, max(0, count - which * run));
            const float* from = exponentials + which * run_pitch;
            float sum = 0.0f;
#pragma unroll 16
            for (int j = lane; j < here; j += sum_lanes) sum += from[j];
#pragma unroll
            for (int half = sum_lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
            if (lane == 0) totals[first + which] = sum;
        }
        __syncthreads();
    }
    if (thread == 0) {
        double total = 0.0;
        for (int r = 0; r < runs; ++r) total += static_cast<double>(totals[r]);
        sum_of_runs = total;
        l.log_probs[row] = (rounded(x[label]) - largest) - static_cast<float>(log(total));
    }
    if (!out || slope == 0.0f) return;
    __syncthreads();
    const float total = static_cast<float>(sum_of_runs);
    for (int i = thread; i < vocab / 8; i += threads) {
        const float4 a = reinterpret_cast<const float4*>(x)[2 * i], b = reinterpret_cast<const float4*>(x)[2 * i + 1];
        float d[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float p = exp_of(rounded(d[j]) - largest) / total;
            if (8 * i + j == label) p -= 1.0f;
            d[j] = p * -slope;
        }
        reinterpret_cast<uint4*>(out)[i] = {pair_of(d[0], d[1]), pair_of(d[2], d[3]), pair_of(d[4], d[5]),
                                            pair_of(d[6], d[7])};
    }
}

}  // namespace

cudaError_t prepare_label_loss() { return allow_shared_memory(label_loss_kernel, shared_bytes); }

cudaError_t launch_label_loss(const LabelLoss& l, cudaStream_t stream) {
    label_loss_kernel<<<static_cast<unsigned>(l.rows), threads, shared_bytes, stream>>>(l);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
