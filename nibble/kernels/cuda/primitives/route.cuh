// The choice of one token's experts by all threads of a thread block, equal to route_token() of moe.cu without groups.
#pragma once

#include "kernels/cuda/moe/moe_launch.h"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {

inline constexpr int route_words = most_experts / 32;

// Shared memory of choose_experts().
struct RouteSpace {
    float* scores;     // [count]
    float* selection;  // [count]
    uint32_t* taken;   // [route_words]: bit e of expert e
    int* chosen;       // [top_k], ascending: the result
    double* total;     // one
    static constexpr int bytes(int count) { return 8 * ((count + 3) / 4 * 4) + 4 * (route_words + most_top_k) + 16; }
    __device__ RouteSpace(uint8_t* at, int count)
        : scores(reinterpret_cast<float*>(at + 16)),
          selection(scores + (count + 3) / 4 * 4),
          taken(reinterpret_cast<uint32_t*>(selection + (count + 3) / 4 * 4)),
          chosen(reinterpret_cast<int*>(taken + route_words)),
          total(reinterpret_cast<double*>(at)) {}
};

// Returns the value that decides the choice; NaN is smallest.
__device__ inline float selected(const RouteArgs& args, float score, float bias) {
    const float value = args.bias ? score + bias : score;
    return value == value ? value : -INFINITY;
}

// A rank is the number of larger values, or equal ones before it. Four lanes count it.
__device__ inline void choose_experts(const RouteArgs& args, const RouteSpace& space) {
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), n = args.count;
    if (thread < route_words) space.taken[thread] = 0;
    for (int i = thread; i < n; i += threads) {
        const float x = args.round ? rounded(args.logits[i]) : args.logits[i];
        const float bias = args.bias ? args.bias[i] : 0.0f, score = args.sigmoid ? 1.0f / (1.0f + exp_of(-x)) : x;
        space.scores[i] = score;
        if (args.sigmoid) space.selection[i] = selected(args, score, bias);
    }
    __syncthreads();
    if (!args.sigmoid) {
        float most = -INFINITY;
        for (int i = thread % 32; i < n; i += 32) most = fmaxf(most, space.scores[i]);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
        __syncthreads();
        for (int i = thread; i < n; i += threads) space.scores[i] = exp_of(space.scores[i] - most);
        __syncthreads();
        if (thread < 32) {
            // If no term has bits below 2^-52 of a bound of the sum, every order gives the exact sum, and thus that of
            // the sequential order, which would take a microsecond.
            bool exact = true;
            double sum = 0;
            for (int i = thread; i < n; i += 32) {
                const float score = space.scores[i];
                exact = exact && (score == 0.0f || score >= static_cast<float>(n) * 0x1p-29f);
                sum += score;
            }
            exact = __all_sync(0xFFFFFFFFu, exact);
#pragma unroll
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
            if (thread == 0 && !exact) {
                sum = 0;
                for (int i = 0; i < n; ++i) sum += space.scores[i];
            }
            if (thread == 0) *space.total = sum;
        }
        __syncthreads();
        const auto total = static_cast<float>(*space.total);
        for (int i = thread; i < n; i += threads) {
            const float score = space.scores[i] / total;
            space.scores[i] = score;
            space.selection[i] = selected(args, score, args.bias ? args.bias[i] : 0.0f);
        }
        __syncthreads();
    }
    for (int base = thread / 32 * 8; base < n; base += threads / 32 * 8) {
        const int i = base + thread % 32 / 4, part = thread % 4;
        const float own = space.selection[min(i, n - 1)];
        int rank = 0;
#pragma unroll 8
        for (int j = part; j < n; j += 4) {
            const float other = space.selection[j];
            rank += other > own || (other == own && j < i);
        }
        rank += __shfl_xor_sync(0xFFFFFFFFu, rank, 1);
        rank += __shfl_xor_sync(0xFFFFFFFFu, rank, 2);
        if (part == 0 && i < n && rank < args.top_k) atomicOr(space.taken + i / 32, 1u << i % 32);
    }
    __syncthreads();
    if (thread < (n + 31) / 32) {
        int at = 0;
        for (int w = 0; w < thread; ++w) at += __popc(space.taken[w]);
        for (uint32_t left = space.taken[thread]; left; left &= left - 1)
            space.chosen[at++] = 32 * thread + __ffs(left) - 1;
    }
    __syncthreads();
}

// Writes the choice for other kernels; called by the first warp of one thread block.
__device__ inline void publish_choice(const RouteArgs& args, const SortArgs& sort, const RouteSpace& space) {
    const int lane = static_cast<int>(threadIdx.x);
    if (lane >= 32) return;
    const int expert = lane < args.top_k ? space.chosen[lane] : args.count;
    float weight = lane < args.top_k ? space.scores[expert] : 0.0f, sum = 0.0f;
    for (int k = 0; k < args.top_k; ++k) sum += __shfl_sync(0xFFFFFFFFu, weight, k);
    if (args.normalize) weight = weight / (sum + args.smallest_sum);
    weight = weight * args.scaling;
    if (lane < args.top_k) {
        args.experts[lane] = expert;
        args.weights[lane] = weight;
        sort.rows[lane] = 0;
        sort.places[lane] = lane;
    }
    for (int e = lane; e <= args.count; e += 32) {
        int below = 0;
        for (int k = 0; k < args.top_k; ++k) below += space.chosen[k] < e;
        sort.begin[e] = below;
    }
}

}  // namespace nibble::cuda
