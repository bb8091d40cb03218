// Merges the partial sums of groups of positions, in order, into outputs.
#pragma once

#include "kernels/cuda/attention/attention_order.cuh"

#include <numbers>

namespace nibble::cuda {

// Atomically adds to a global counter and returns the old value. Acquire-release: earlier writes of this thread are
// visible to threads that see the sum, and theirs to it.
__device__ inline int32_t add_and_see(int32_t* counter, int32_t more) {
    int32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(more) : "memory");
    return before;
}

// Called by all `Threads` threads; `thread` is this one's index, with two dimensions each. Other thread blocks of the
// same launch have written the sums.
template <int Columns, int VDim, int Threads>
__device__ void merge_groups(const AttentionArgs& args, const AttentionMerge& merge, int head, int thread) {
    constexpr int ahead = 16;  // groups at a time: a lane has the factors of one
    const int lane = thread % 32, group = args.q_heads / args.kv_heads;
#pragma unroll 1
    for (int at = thread * 2; at < merge.columns * VDim; at += 2 * Threads) {
        const int column = at / VDim, d = at % VDim;  // one column per warp
        const auto place = [&](int i) { return (int64_t{merge.first + i} * args.kv_heads + head) * Columns + column; };
        const int64_t apart = int64_t{args.kv_heads} * Columns * VDim;
        float top = -INFINITY, sum = 0.0f;
        float2 total{0.0f, 0.0f};
#pragma unroll 1
        for (int first = 0; first < merge.count; first += ahead) {
            const int here = min(ahead, merge.count - first);
            const float* from = args.sums + place(first) * VDim + d;
            float2 value[ahead];
#pragma unroll
            for (int i = 0; i < ahead; ++i)
                value[i] = __ldcg(reinterpret_cast<const float2*>(from + min(i, here - 1) * apart));
            const float2 own = lane < here ? __ldcg(args.tops + place(first + lane)) : float2{-INFINITY, 0.0f};
            float through = own.x;
#pragma unroll
            for (int step = 1; step < ahead; step *= 2) {
                const float other = __shfl_up_sync(all_lanes, through, step);
                if (lane >= step) through = fmaxf(through, other);
            }
            float before = fmaxf(__shfl_up_sync(all_lanes, through, 1), top);
            if (lane == 0) before = top;
            const Weights weights(before, own.x);
            top = fmaxf(top, __shfl_sync(all_lanes, through, ahead - 1));
            // Groups after the last have weights 1 and 0.
#pragma unroll
            for (int i = 0; i < ahead; ++i) {
                const float a = __shfl_sync(all_lanes, weights.own, i), b = __shfl_sync(all_lanes, weights.other, i);
                sum = fmaf(b, __shfl_sync(all_lanes, own.y, i), a * sum);
                total.x = fmaf(b, value[i].x, a * total.x);
                total.y = fmaf(b, value[i].y, a * total.y);
            }
        }
        if (d >= args.v_dim) continue;
        const int whole = merge.column + column;
        const int64_t to = (int64_t{merge.row} + whole / group) * args.q_heads + head * group + whole % group;
        float factor = 1.0f;
        if (args.sinks)
            factor = add_sink(args.sinks[head * group + whole % group] * std::numbers::log2e_v<float>, top, sum);
        if (args.log_sums && d == 0) args.log_sums[to] = top + log2f(sum);
        const float scale = output_scale(sum, args.v_scales ? args.v_scales[head] : 1.0f) * factor;
        *reinterpret_cast<uint32_t*>(args.out + (to * args.v_dim + d) * 2) =
            Bf16Kv::pack(output_of(total.x, scale), output_of(total.y, scale));
    }
}

}  // namespace nibble::cuda
