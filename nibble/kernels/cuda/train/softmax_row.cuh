// The largest logit of a row and the sum of exp(x - largest), by a whole thread block: in the order of
// kernels/elementwise.h (runs of 4096, lane l of 16 adds elements l, l + 16 ..., a halving tree, run totals in FP64).
#pragma once

#include "kernels/cuda/common/elementwise.cuh"

namespace nibble::cuda {

constexpr int softmax_threads = 512, softmax_run = 4096, softmax_runs_at_once = 4;
constexpr int softmax_run_pitch = softmax_run + 16;  // lanes of neighbouring runs in different banks
constexpr int softmax_most_runs = 256;               // a vocabulary of 2^20
constexpr int softmax_shared_bytes = softmax_runs_at_once * softmax_run_pitch * 4;

struct SoftmaxRow {
    float largest;
    double total;
};

// x [vocab] FP32, a multiple of 8, read as BF16. `exponentials`: softmax_shared_bytes. All threads get the result; a
// second call may follow at once.
__device__ inline SoftmaxRow softmax_row(const float* x, int vocab, float* exponentials) {
    __shared__ float totals[softmax_most_runs], of_warp[softmax_threads / 32];
    __shared__ double sum_of_runs;
    const int thread = static_cast<int>(threadIdx.x);
    float largest = -INFINITY;
    for (int i = thread; i < vocab / 4; i += softmax_threads) {
        const float4 v = reinterpret_cast<const float4*>(x)[i];
        largest = fmaxf(largest, fmaxf(fmaxf(rounded(v.x), rounded(v.y)), fmaxf(rounded(v.z), rounded(v.w))));
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    if (thread % 32 == 0) of_warp[thread / 32] = largest;
    __syncthreads();
    for (const float v : of_warp) largest = fmaxf(largest, v);
    const int runs = (vocab + softmax_run - 1) / softmax_run;
    for (int first = 0; first < runs; first += softmax_runs_at_once) {
        const int begin = first * softmax_run, count = min(softmax_runs_at_once * softmax_run, vocab - begin);
        for (int i = thread; i < count / 4; i += softmax_threads) {
            const float4 v = *reinterpret_cast<const float4*>(x + begin + 4 * i);
            auto* to = reinterpret_cast<float4*>(exponentials + 4 * i / softmax_run * softmax_run_pitch +
                                                 4 * i % softmax_run);
            *to = {exp_of(rounded(v.x) - largest), exp_of(rounded(v.y) - largest), exp_of(rounded(v.z) - largest),
                   exp_of(rounded(v.w) - largest)};
        }
        __syncthreads();
        if (thread < softmax_runs_at_once * sum_lanes) {
            const int which = thread / sum_lanes, lane = thread % sum_lanes;
            const int here = min(softmax_run, max(0, count - which * softmax_run));
            const float* from = exponentials + which * softmax_run_pitch;
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
    }
    __syncthreads();
    return {largest, sum_of_runs};
}

}  // namespace nibble::cuda
