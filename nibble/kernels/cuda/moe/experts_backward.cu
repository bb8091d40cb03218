// Products of the backward pass over rows sorted by expert, with mma.sync.m16n8k16: tiles of 128 x 128, 32 of the
// reduction per step, four steps in flight by cp.async, eight warps of 64 x 32.
//
//   input     dx [slot, col] = sum over rows of dy[slot, row] W_e[row, col]; a thread block finds the expert of its
//             slots in `begin`
//   weights   dw_e [row, col] = sum over the expert's slots of dy[slot, row] x[slot, col]; a thread block per expert
//             and tile
#include "kernels/cuda/moe/moe_backward_launch.h"
#include "kernels/cuda/primitives/elementwise.cuh"

namespace nibble::cuda {
namespace {

constexpr int edge = 128, depth = 32, stages = 4, threads = 256;
constexpr int tile_bytes = edge * depth * 2, stage_bytes = 2 * tile_bytes, most_experts_each = 4;

// Address in a tile whose rows are the reduction: [32][128], 256 bytes per row, 16-byte chunks swizzled by the row
// modulo 8.
__device__ uint32_t deep_at(uint32_t base, int row, int chunk) { return base + row * 256 + ((chunk ^ (row & 7)) << 4); }
// Address in a tile whose columns are the reduction: [128][32], 64 bytes per row.
__device__ uint32_t flat_at(uint32_t base, int row, int chunk) {
    return base + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4);
}
__device__ void load_transposed(uint32_t (&r)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

struct Found {
    int expert = -1, tile = 0;
};

// Finds the expert that owns tile number `wanted`, counting tiles of 128 slots over experts in ascending order. Called
// by all threads.
__device__ Found find_tile(const int32_t* begin, int experts, int wanted) {
    __shared__ int of_warp[threads / 32];
    __shared__ Found found;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    if (thread == 0) found = {};
    int own[most_experts_each], sum = 0;
#pragma unroll
    for (int i = 0; i < most_experts_each; ++i) {
        const int e = most_experts_each * thread + i;
        own[i] = e < experts ? (begin[e + 1] - begin[e] + edge - 1) / edge : 0;
        sum += own[i];
    }
    int before = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xFFFFFFFFu, before, step);
        if (lane >= step) before += other;
    }
    if (lane == 31) of_warp[warp] = before;
    __syncthreads();
    before -= sum;
    for (int w = 0; w < warp; ++w) before += of_warp[w];
#pragma unroll
    for (int i = 0; i < most_experts_each; ++i) {
        if (wanted >= before && wanted < before + own[i]) found = {most_experts_each * thread + i, wanted - before};
        before += own[i];
    }
    __syncthreads();
    return found;
}

template <bool Weights>
__global__ void __launch_bounds__(threads, 2) experts_bf16_backward_kernel(const __grid_constant__ ExpertsBackArgs a) {
    extern __shared__ __align__(128) uint8_t back_tiles[];
    const uint32_t base = shared_address(back_tiles);
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    const int col0 = static_cast<int>(blockIdx.x) * edge;
    Found at{static_cast<int>(blockIdx.z), static_cast<int>(blockIdx.y)};
    if constexpr (!Weights) {
        at = find_tile(a.begin, a.experts, static_cast<int>(blockIdx.y));
        if (at.expert < 0) return;
    }
    const int64_t first = a.begin[at.expert], last = a.begin[at.expert + 1];
    // Index in the result: a row of W, or a slot.
    const int64_t row0 = int64_t{at.tile} * edge + (Weights ? 0 : first);
    const int64_t reduced = Weights ? last - first : a.rows;
    const int steps = static_cast<int>((reduced + depth - 1) / depth);
    const auto load = [&](int step) {
        const uint32_t left = base + step % stages * stage_bytes, right = left + tile_bytes;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int index = thread + i * threads, k = index / 16, c = index % 16;
            const int64_t deep = int64_t{step} * depth + k;  // index in the reduction
            if constexpr (Weights) {
                const int64_t column = row0 + 8 * c;
                const bool present = deep < reduced && column < a.rows;
                copy16_or_zero(deep_at(left, k, c), a.dy + (present ? 2 * ((first + deep) * a.rows + column) : 0),
                               present);
            } else {
                const int r = index / 4, chunk = index % 4;
                const int64_t slot = row0 + r, column = int64_t{step} * depth + 8 * chunk;
                const bool present = slot < last && column < a.rows;
                copy16_or_zero(flat_at(left, r, chunk), a.dy + (present ? 2 * (slot * a.rows + column) : 0), present);
            }
            const int64_t row = Weights ? first + deep : at.expert * a.rows + deep, column = col0 + 8 * c;
            const bool present = deep < reduced && column < a.cols;
            copy16_or_zero(deep_at(right, k, c), a.other + (present ? 2 * (row * a.cols + column) : 0), present);
        }
    };
    const int warp_row = warp / 4 * 64, warp_col = warp % 4 * 32;
    float sum[4][4][4] = {};
#pragma unroll
    for (int step = 0; step < stages - 1; ++step) {
        if (step < steps) load(step);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int step = 0; step < steps; ++step) {
        asm volatile("cp.async.wait_group %0;" ::"n"(stages - 2) : "memory");
        __syncthreads();
        if (step + stages - 1 < steps) load(step + stages - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const uint32_t left = base + step % stages * stage_bytes, right = left + tile_bytes;
#pragma unroll
        for (int k = 0; k < depth; k += 16) {
            uint32_t rows[4][4], columns[2][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = warp_row + 16 * i;
                if constexpr (Weights)
                    load_transposed(rows[i], deep_at(left, k + lane / 16 * 8 + lane % 8, row / 8 + lane / 8 % 2));
                else
                    load_matrices(rows[i], flat_at(left, row + lane % 16, k / 8 + lane / 16));
            }
#pragma unroll
            for (int j = 0; j < 2; ++j)
                load_transposed(columns[j], deep_at(right, k + lane % 16, (warp_col + 16 * j) / 8 + lane / 16));
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    multiply_add(sum[i][j], rows[i], columns[j / 2][2 * (j % 2)], columns[j / 2][2 * (j % 2) + 1]);
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    const int g = lane / 4, c = lane % 4;
    const int64_t end = Weights ? a.rows : last;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int64_t row = row0 + warp_row + 16 * i + g + 8 * half;
            if (row >= end) continue;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int64_t column = col0 + warp_col + 8 * j + 2 * c;
                if (column >= a.cols) continue;
                const float low = sum[i][j][2 * half], high = sum[i][j][2 * half + 1];
                if constexpr (Weights)
                    *reinterpret_cast<float2*>(static_cast<float*>(a.out) + (at.expert * a.rows + row) * a.cols +
                                               column) = {low, high};
                else
                    *reinterpret_cast<uint32_t*>(static_cast<std::byte*>(a.out) + 2 * (row * a.cols + column)) =
                        pair_of(low, high);
            }
        }
}

}  // namespace

cudaError_t prepare_experts_back() {
    if (const cudaError_t code = allow_shared_memory(experts_bf16_backward_kernel<true>, stages * stage_bytes))
        return code;
    return allow_shared_memory(experts_bf16_backward_kernel<false>, stages * stage_bytes);
}

cudaError_t launch_experts_input_gradient(const ExpertsBackArgs& a, cudaStream_t stream) {
    const dim3 blocks(ceil_blocks(a.cols, edge), static_cast<unsigned>(ceil_blocks(a.slots, edge) + a.experts));
    experts_bf16_backward_kernel<false><<<blocks, threads, stages * stage_bytes, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_experts_weight_gradient(const ExpertsBackArgs& a, cudaStream_t stream) {
    const dim3 blocks(ceil_blocks(a.cols, edge), ceil_blocks(a.rows, edge), static_cast<unsigned>(a.experts));
    experts_bf16_backward_kernel<true><<<blocks, threads, stages * stage_bytes, stream>>>(a);
    return cudaGetLastError();
}

}  // namespace nibble::cuda
