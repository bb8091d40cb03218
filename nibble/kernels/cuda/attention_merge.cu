// The shares of groups of positions, in order, to one output: a thread block per segment column and KV head, a
// dimension a thread.
#include "kernels/cuda/attention_order.cuh"
#include "kernels/cuda/elementwise.cuh"

namespace nibble::cuda {
namespace {

struct MergeArgs {
    AttentionArgs attention;
    int columns, v_padded;
    bool overlap;
};

constexpr int ahead = 16;  // groups at a time: a lane has the factors of one. Little code: it is cold when it runs

__global__ void merge_kernel(const __grid_constant__ MergeArgs all) {
    const AttentionArgs& args = all.attention;
    start(all.overlap);
    const int merges = args.work[1], group = args.q_heads / args.kv_heads, d = static_cast<int>(threadIdx.x);
    const int lane = d % 32;
    const int32_t* list = args.work + args.work[2];
    for (int item = static_cast<int>(blockIdx.x); item < merges * args.kv_heads * all.columns;
         item += static_cast<int>(gridDim.x)) {
        const int column = item % all.columns, head = item / all.columns % args.kv_heads;
        const int32_t* m = list + item / all.columns / args.kv_heads * merge_words;
        const AttentionMerge merge{m[0], m[1], m[2], m[3], m[4]};
        if (column >= merge.columns) continue;
        const auto place = [&](int i) {
            return (int64_t{merge.first + i} * args.kv_heads + head) * all.columns + column;
        };
        const int apart = args.kv_heads * all.columns * all.v_padded;
        float top = -INFINITY, sum = 0.0f, total = 0.0f;
        for (int first = 0; first < merge.count; first += ahead) {
            const int here = min(ahead, merge.count - first);
            const float* from = args.sums + place(first) * all.v_padded + d;
            float value[ahead];
#pragma unroll
            for (int i = 0; i < ahead; ++i) value[i] = from[min(i, here - 1) * apart];
            const float2 own = lane < here ? args.tops[place(first + lane)] : float2{-INFINITY, 0.0f};
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
            // Those behind the last have weights 1 and 0.
#pragma unroll
            for (int i = 0; i < ahead; ++i) {
                const float a = __shfl_sync(all_lanes, weights.own, i), b = __shfl_sync(all_lanes, weights.other, i);
                sum = fmaf(b, __shfl_sync(all_lanes, own.y, i), a * sum);
                total = fmaf(b, value[i], a * total);
            }
        }
        if (d >= args.v_dim) continue;
        const int whole = merge.column + column;
        const int64_t to = (int64_t{merge.row} + whole / group) * args.q_heads + head * group + whole % group;
        reinterpret_cast<__nv_bfloat16*>(args.out)[to * args.v_dim + d] =
            __float2bfloat16_rn(output_of(total, sum, args.v_scales ? args.v_scales[head] : 1.0f));
    }
}

}  // namespace

cudaError_t launch_merge(const AttentionArgs& args, const AttentionKernelShape& shape, int blocks,
                         cudaStream_t stream) {
    const MergeArgs merge{args, shape.columns, shape.dims.v, args.overlap};
    return launch_kernel(merge_kernel, dim3(static_cast<unsigned>(blocks)), shape.dims.v, 0, merge, stream);
}

}  // namespace nibble::cuda
