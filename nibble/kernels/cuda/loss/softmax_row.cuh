// Computes the largest logit of a row and the sum of exp(x - largest) with the thread blocks of a cluster, in the order
// of kernels/elementwise.h (runs of 4096; lane l of 16 adds elements l, l + 16 ...; a halving tree; run totals in
// FP64). A thread block reads whole runs once and keeps them in shared memory, so a gradient may overwrite the logits.
#pragma once

#include "kernels/cuda/primitives/rows8.cuh"
#include "kernels/loss_args.h"

namespace nibble::cuda {

constexpr int softmax_threads = 512, softmax_run = 4096;
// Maximum runs per thread block: two rows of this length fit into shared memory, and two thread blocks with one row
// each.
constexpr int softmax_most_each = 13, softmax_most_cluster = 8;
constexpr int softmax_most_runs = softmax_most_each * softmax_most_cluster;
static_assert(softmax_most_runs * softmax_run == softmax_most_vocab);

__device__ inline uint32_t cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Stores a float to the shared memory of thread block `rank` of the cluster, at the address `at` of this block. Call
// after a cluster_sync(), which ensures that the block has started.
__device__ inline void cluster_store(uint32_t at, uint32_t rank, float value) {
    asm volatile(
        "{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\t"
        "st.shared::cluster.f32 [there], %2;\n\t}" ::"r"(at),
        "r"(rank), "f"(value)
        : "memory");
}

__device__ inline float larger_or_nan(float a, float b) {
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}
// The distribution of a row's runs over thread blocks.
struct SoftmaxShape {
    int vocab = 0, runs = 0, cluster = 1, each = 0;  // each: runs per thread block

    static SoftmaxShape of(int64_t vocab) {
        SoftmaxShape s{.vocab = static_cast<int>(vocab)};
        s.runs = (s.vocab + softmax_run - 1) / softmax_run;
        while ((s.runs + s.cluster - 1) / s.cluster > softmax_most_each) s.cluster *= 2;
        s.each = (s.runs + s.cluster - 1) / s.cluster;
        return s;
    }
    NIBBLE_HD int part() const { return each * softmax_run; }  // elements per thread block
    int shared_bytes() const { return 2 * part(); }
};

// A thread block's part of a row: elements [begin, begin + count), at `x` in shared memory.
struct SoftmaxPart {
    const uint16_t* x;
    int begin, count;
    float largest;  // largest and total are those of the whole row
    double total;

    __device__ bool has(int i) const { return i >= begin && i < begin + count; }
    __device__ float from_largest(int i) const { return bf16_to_float(x[i - begin]) - largest; }
    // Returns exp(from_largest) / total, exact enough for a gradient; shift: log2(total).
    static __device__ float share(float from_largest, float shift) {
        float p;
        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(p) : "f"(fmaf(from_largest, exp_log2e, -shift)));
        return p;
    }
};

// x [vocab] BF16, vocab a multiple of 8; `kept`: SoftmaxShape::shared_bytes() bytes. Called by all threads of the
// cluster; a second call may follow at once.
__device__ inline SoftmaxPart softmax_part(const uint16_t* x, const SoftmaxShape& shape, uint16_t* kept) {
    __shared__ float totals[softmax_most_runs], of_warp[softmax_threads / 32], of_block;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int rank = static_cast<int>(cluster_rank()), first_run = rank * shape.each;
    const int begin = min(rank * shape.part(), shape.vocab), count = min(shape.part(), shape.vocab - begin);
    float largest = -INFINITY;
#pragma unroll 4
    for (int i = thread; i < count / 8; i += softmax_threads) {
        const uint4 w = reinterpret_cast<const uint4*>(x + begin)[i];
        reinterpret_cast<uint4*>(kept)[i] = w;
        float v[8];
        unpack8(w, v);
#pragma unroll
        for (const float one : v) largest = larger_or_nan(largest, one);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        largest = larger_or_nan(largest, __shfl_xor_sync(0xFFFFFFFFu, largest, step));
    if (lane == 0) of_warp[warp] = largest;
    __syncthreads();
    for (const float v : of_warp) largest = larger_or_nan(largest, v);
    if (thread == 0) of_block = largest;
    cluster_sync();
    for (int r = 0; r < shape.cluster; ++r)
        largest = larger_or_nan(largest, cluster_float(shared_address(&of_block), static_cast<uint32_t>(r)));
    // A warp processes a run, 32 adjacent elements at a time: lane l of 16 adds its own element and that of lane l +
    // 16. The sums of the upper lanes are not used.
    for (int run = warp; run * softmax_run < count; run += softmax_threads / 32) {
        const uint16_t* own = kept + run * softmax_run + lane;
        const int here = min(softmax_run, count - run * softmax_run), whole = here / 32 * 32;
        float sum = 0.0f;
        const auto add = [&](float e) { sum = (sum + e) + __shfl_xor_sync(0xFFFFFFFFu, e, 16); };
#pragma unroll 8
        for (int j = 0; j < whole; j += 32) add(exp_of_number<true>(bf16_to_float(own[j]) - largest));
        if (whole < here) add(whole + lane < here ? exp_of_number<true>(bf16_to_float(own[whole]) - largest) : 0.0f);
#pragma unroll
        for (int half = sum_lanes / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, half);
        sum = __shfl_sync(0xFFFFFFFFu, sum, 0);
        if (lane < shape.cluster)
            cluster_store(shared_address(&totals[first_run + run]), static_cast<uint32_t>(lane), sum);
    }
    cluster_sync();
    double total = is_finite(largest) ? 0.0 : static_cast<double>(NAN);
    for (int r = 0; r < shape.runs; ++r) total += static_cast<double>(totals[r]);
    return {kept, begin, count, largest, total};
}

// Launches kernel(args, shape) with one cluster per row, which keeps `kept` rows.
template <class Args>
cudaError_t launch_rows(void (*kernel)(Args, SoftmaxShape), const Args& args, int64_t rows, int64_t vocab, int kept,
                        cudaStream_t stream) {
    const SoftmaxShape shape = SoftmaxShape::of(vocab);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(rows * shape.cluster);
    config.blockDim = softmax_threads;
    config.dynamicSmemBytes = static_cast<size_t>(kept * shape.shared_bytes());
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, args, shape);
}

}  // namespace nibble::cuda
