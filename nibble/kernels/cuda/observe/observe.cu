// Ranges, second moments and divergences of a model's activations.
#include "kernels/cuda/observe/observe_launch.h"
#include "kernels/cuda/primitives/elementwise.cuh"
#include "kernels/cuda/primitives/kv_store.cuh"

namespace nibble::cuda {
namespace {

constexpr unsigned every_lane = 0xFFFFFFFFu;
constexpr int warps = 8, most_blocks = 1056;

// ---- Ranges -------------------------------------------------------------------------------------------------------

// Returns the expert of `row`: the last that begins at or before it.
__device__ int expert_of(const int32_t* begin, int experts, int64_t row) {
    int low = 0, high = experts - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (begin[middle] <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// A warp processes adjacent rows. |x| of BF16 orders like its code; NaN is largest.
__global__ void __launch_bounds__(32 * warps) observe_ranges_kernel(const __grid_constant__ RangeArgs args) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t all = int64_t{gridDim.x} * warps, each = (args.rows + all - 1) / all;
    const int64_t first = (int64_t{blockIdx.x} * warps + threadIdx.x / 32) * each, last = min(first + each, args.rows);
    if (first >= last) return;
    int expert = args.begin ? expert_of(args.begin, args.experts, first) : 0;
    uint32_t best = 0;  // two codes
    uint64_t rows = 0;
    const auto flush = [&] {
        const uint32_t most = __reduce_max_sync(every_lane, max(best & 0xFFFFu, best >> 16));
        if (lane == 0 && rows > 0) {
            atomicMax(reinterpret_cast<unsigned int*>(&args.sums[expert].largest), most << 16);
            atomicAdd(reinterpret_cast<unsigned long long*>(&args.sums[expert].rows), rows);
        }
        best = 0, rows = 0;
    };
    for (int64_t row = first; row < last; ++row) {
        while (args.begin && row >= args.begin[expert + 1]) {
            flush();
            ++expert;
        }
        ++rows;
        const uint4* x = args.x + row * args.chunks;
#pragma unroll 4
        for (int64_t i = lane; i < args.chunks; i += 32) {
            const uint4 v = x[i];
            best = __vmaxu2(best, v.x & 0x7FFF7FFFu);
            best = __vmaxu2(best, v.y & 0x7FFF7FFFu);
            best = __vmaxu2(best, v.z & 0x7FFF7FFFu);
            best = __vmaxu2(best, v.w & 0x7FFF7FFFu);
        }
    }
    flush();
}

// The y dimension of the grid is the expert. A block counts in its own table first.
__global__ void __launch_bounds__(1024) observe_counts_kernel(const __grid_constant__ RangeArgs args) {
    extern __shared__ uint32_t table[];
    const int expert = static_cast<int>(blockIdx.y);
    const int64_t begin = args.begin ? args.begin[expert] : 0, end = args.begin ? args.begin[expert + 1] : args.rows;
    const int64_t first = begin * args.chunks, count = (end - begin) * args.chunks;
    if (int64_t{blockIdx.x} * blockDim.x >= count) return;
    for (int i = static_cast<int>(threadIdx.x); i < range_buckets; i += blockDim.x) table[i] = 0;
    __syncthreads();
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
        const uint4 v = args.x[first + i];
        for (const uint32_t pair : {v.x, v.y, v.z, v.w}) {
            atomicAdd(&table[pair & 0x7FFFu], 1u);
            atomicAdd(&table[pair >> 16 & 0x7FFFu], 1u);
        }
    }
    __syncthreads();
    auto* counts = reinterpret_cast<unsigned long long*>(args.counts) + expert * range_buckets;
    for (int i = static_cast<int>(threadIdx.x); i < range_buckets; i += blockDim.x)
        if (table[i]) atomicAdd(&counts[i], static_cast<unsigned long long>(table[i]));
}

// ---- The cache ----------------------------------------------------------------------------------------------------

__global__ void observe_read_kv_kernel(const __grid_constant__ ReadKvArgs args) {
    const CacheArgs& c = args.cache;
    const int64_t item = int64_t{blockIdx.x} * warps + threadIdx.x / 32;
    if (item >= args.tokens * c.kv_heads) return;
    const int64_t slot = args.slots[item / c.kv_heads];
    const int head = static_cast<int>(item % c.kv_heads), lane = static_cast<int>(threadIdx.x) % 32;
    const int t = static_cast<int>(slot % c.page_tokens) % kv_tile_tokens;
    const uint8_t* tile = tile_of_slot(c, head, slot);
    const uint8_t* values = tile + k_tile_bytes(c.type, c.padded);
    for (int d = lane; d < c.dims.k; d += 32)
        args.k[item * c.dims.k + d] = *reinterpret_cast<const uint16_t*>(tile + k_offset(c.type, t, d));
    for (int d = lane; d < c.dims.v; d += 32)
        args.v[item * c.dims.v + d] = *reinterpret_cast<const uint16_t*>(values + v_offset(c.type, t, d));
}

// ---- Second moments -----------------------------------------------------------------------------------------------

constexpr int square = 32;

__global__ void observe_transpose_kernel(const uint16_t* x, int64_t rows, int64_t n, uint16_t* out, int64_t padded) {
    __shared__ uint16_t tile[square][square + 2];
    const int64_t row0 = int64_t{blockIdx.x} * square, column0 = int64_t{blockIdx.y} * square;
    for (int i = static_cast<int>(threadIdx.y); i < square; i += blockDim.y) {
        const int64_t row = row0 + i, column = column0 + threadIdx.x;
        tile[i][threadIdx.x] = row < rows && column < n ? x[row * n + column] : uint16_t{0};
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.y); i < square; i += blockDim.y) {
        const int64_t row = row0 + threadIdx.x, column = column0 + i;
        if (row < padded && column < n) out[column * padded + row] = tile[threadIdx.x][i];
    }
}

__global__ void observe_add_moments_kernel(const float* part, int64_t count, double* sums) {
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < count) sums[i] += static_cast<double>(part[i]);
}

// One thread block per block of 16 columns, one thread per entry.
__global__ void __launch_bounds__(256)
    observe_local_moments_kernel(const uint16_t* x, int64_t rows, int64_t n, double* sums) {
    constexpr int side = 16, together = 128;
    __shared__ float staged[together][side];
    const int i = static_cast<int>(threadIdx.x) / side, j = static_cast<int>(threadIdx.x) % side;
    const int64_t column = int64_t{blockIdx.x} * side;
    double* entry = sums + int64_t{blockIdx.x} * side * side + threadIdx.x;
    double sum = *entry;
    float partial = 0.0f;
    for (int64_t first = 0; first < rows; first += together) {
        const int count = static_cast<int>(min(rows - first, int64_t{together}));
        __syncthreads();
        for (int at = static_cast<int>(threadIdx.x); at < count * side; at += 256)
            staged[at / side][at % side] = bf16_to_float(x[(first + at / side) * n + column + at % side]);
        __syncthreads();
        for (int t = 0; t < count; ++t) partial = fmaf(staged[t][i], staged[t][j], partial);
        if ((first + together) % local_moment_chunk == 0 || first + together >= rows) {
            sum += static_cast<double>(partial);
            partial = 0.0f;
        }
    }
    *entry = sum;
}

// ---- Divergence ---------------------------------------------------------------------------------------------------

constexpr int divergence_threads = 512;

// Reduces over all threads in a fixed order.
template <class T, class Op>
__device__ T block_total(T value, T* shared, Op op) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int half = divergence_threads / 2; half > 0; half /= 2) {
        if (static_cast<int>(threadIdx.x) < half)
            shared[threadIdx.x] = op(shared[threadIdx.x], shared[threadIdx.x + half]);
        __syncthreads();
    }
    const T total = shared[0];
    __syncthreads();
    return total;
}

__global__ void __launch_bounds__(divergence_threads)
    kl_divergence_kernel(const float* p, const float* q, int64_t vocab, double* out) {
    __shared__ double shared[divergence_threads];
    auto* largest = reinterpret_cast<float*>(shared);
    const auto most = [](float a, float b) { return a > b ? a : b; };
    const auto add = [](double a, double b) { return a + b; };
    const float *row_p = p + blockIdx.x * vocab, *row_q = q + blockIdx.x * vocab;
    float p_most = -INFINITY, q_most = -INFINITY;
    for (int64_t i = threadIdx.x; i < vocab; i += divergence_threads)
        p_most = most(p_most, row_p[i]), q_most = most(q_most, row_q[i]);
    p_most = block_total(p_most, largest, most);
    q_most = block_total(q_most, largest, most);
    double p_sum = 0, q_sum = 0;
    for (int64_t i = threadIdx.x; i < vocab; i += divergence_threads) {
        p_sum += exp(static_cast<double>(row_p[i]) - p_most);
        q_sum += exp(static_cast<double>(row_q[i]) - q_most);
    }
    const double p_shift = p_most + log(block_total(p_sum, shared, add));
    const double q_shift = q_most + log(block_total(q_sum, shared, add));
    double sum = 0;
    for (int64_t i = threadIdx.x; i < vocab; i += divergence_threads) {
        const double log_p = row_p[i] - p_shift, log_q = row_q[i] - q_shift;
        sum += exp(log_p) * (log_p - log_q);
    }
    sum = block_total(sum, shared, add);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

}  // namespace

cudaError_t launch_ranges(const RangeArgs& args, cudaStream_t stream) {
    const unsigned blocks = min(ceil_blocks(args.rows, warps), static_cast<unsigned>(most_blocks));
    observe_ranges_kernel<<<blocks, 32 * warps, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_range_counts(const RangeArgs& args, cudaStream_t stream) {
    constexpr int bytes = static_cast<int>(range_buckets) * 4;
    if (const cudaError_t code =
            cudaFuncSetAttribute(observe_counts_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes))
        return code;
    const unsigned across = max(1u, min(132u, ceil_blocks(args.rows * args.chunks, 1024)) / args.experts);
    observe_counts_kernel<<<dim3(across, static_cast<unsigned>(args.experts)), 1024, bytes, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_read_kv(const ReadKvArgs& args, cudaStream_t stream) {
    observe_read_kv_kernel<<<ceil_blocks(args.tokens * args.cache.kv_heads, warps), 32 * warps, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_transpose(const uint16_t* x, int64_t rows, int64_t n, uint16_t* out, int64_t padded,
                             cudaStream_t stream) {
    const dim3 blocks(ceil_blocks(padded, square), ceil_blocks(n, square));
    observe_transpose_kernel<<<blocks, dim3(square, 8), 0, stream>>>(x, rows, n, out, padded);
    return cudaGetLastError();
}

cudaError_t launch_add_sums(const float* part, int64_t count, double* sums, cudaStream_t stream) {
    observe_add_moments_kernel<<<ceil_blocks(count, 256), 256, 0, stream>>>(part, count, sums);
    return cudaGetLastError();
}

cudaError_t launch_local_moments(const uint16_t* x, int64_t rows, int64_t n, double* sums, cudaStream_t stream) {
    observe_local_moments_kernel<<<static_cast<unsigned>(n / 16), 256, 0, stream>>>(x, rows, n, sums);
    return cudaGetLastError();
}

cudaError_t launch_divergences(const float* p, const float* q, int64_t rows, int64_t vocab, double* out,
                               cudaStream_t stream) {
    kl_divergence_kernel<<<static_cast<unsigned>(rows), divergence_threads, 0, stream>>>(p, q, vocab, out);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
