// W4A16 for one to eight tokens. A thread block takes `tiles` tiles of 16 rows and all of K (or half of it, see
// Split); a warp takes one, two or four chunks of a tile's K in sequence.
//
// A warp owns a slot in shared memory: it asks the copy engine for a record, waits, moves the record into registers,
// asks for the next one and only then computes, so that loads of one warp overlap the arithmetic of all others. Thread
// blocks of few warps have two slots a warp: one each does not keep enough bytes on their way. (With 32 warps a second
// slot makes the last ones start later: 11 % slower at 8192 x 8192.) x lies in shared memory for the whole run. Lanes
// of absent tokens read a present one: their columns are never stored.
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/matmul_launch.h"
#include "kernels/cuda/product_epilogue.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/w4a16_decode.cuh"

#include <cuda_runtime.h>

namespace nibble::cuda {
namespace {

// Four k-steps: 64 columns.
__device__ void block64(float (&acc)[4], const uint4& codes, const ScalePairs& scales, const uint4 (&x)[2]) {
    const uint32_t b[8] = {x[0].x, x[0].y, x[0].z, x[0].w, x[1].x, x[1].y, x[1].z, x[1].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        uint32_t a[4];
        decode_step(a, codes, scales, j);
        multiply_add(acc, a, b[2 * j], b[2 * j + 1]);
    }
}

// h + update into the order of ref's sum, its norm as x. Shared memory: row, norm_row_bytes().
__device__ void normed_input(const GemvArgs& args, float* row, uint32_t* x, float2 (&w)[norm_pairs]) {
    const GemvNorm& n = args.norm;
    const int k = static_cast<int>(args.x_bytes / 2), pitch = lane_pitch(k), threads = static_cast<int>(blockDim.x);
    float* shared_scale = row + sum_lanes * pitch;
    float2 v[norm_pairs], u[norm_pairs];
    uint32_t h[norm_pairs];
    bool bad = false;
    // All loads are on their way before the first is used.
#pragma unroll
    for (int j = 0; j < norm_pairs; ++j) {
        const int pair = min(static_cast<int>(threadIdx.x) + j * threads, k / 2 - 1);
        h[j] = reinterpret_cast<const uint32_t*>(n.h)[pair];
        if (n.update) u[j] = reinterpret_cast<const float2*>(n.update)[pair];
    }
#pragma unroll
    for (int j = 0; j < norm_pairs; ++j) {
        const int pair = static_cast<int>(threadIdx.x) + j * threads;
        if (pair >= k / 2) continue;
        v[j] = {__uint_as_float(h[j] << 16), __uint_as_float(h[j] & 0xFFFF0000u)};
        if (n.update) v[j] = {rounded(v[j].x + rounded(u[j].x)), rounded(v[j].y + rounded(u[j].y))};
        float* to = lane_place(row, pitch, 2 * pair);
        to[0] = v[j].x, to[pitch] = v[j].y;
        if (blockIdx.x > 0) continue;
        if (n.h_out) reinterpret_cast<uint32_t*>(n.h_out)[pair] = pair_of(v[j].x, v[j].y);
        bad = bad || !is_finite(v[j].x) || !is_finite(v[j].y);
    }
    if (bad && n.nonfinite) atomicMin(n.nonfinite, 0);
    __syncthreads();
    if (threadIdx.x < 32) {
        const float scale = norm_scale(row, k, n.eps);
        if (threadIdx.x == 0) *shared_scale = scale;
    }
    __syncthreads();
    const float r = *shared_scale;
#pragma unroll
    for (int j = 0; j < norm_pairs; ++j)
        if (const int pair = static_cast<int>(threadIdx.x) + j * threads; pair < k / 2) {
            x[pair] = pair_of((v[j].x * r) * w[j].x, (v[j].y * r) * w[j].y);
            if (blockIdx.x == 0 && n.x_out) reinterpret_cast<uint32_t*>(n.x_out)[pair] = x[pair];
        }
    // Columns of padding.
    for (int pair = k / 2 + static_cast<int>(threadIdx.x); pair < args.row_records * w4a16::record_cols / 2;
         pair += threads)
        x[pair] = 0;
}

__device__ void load_norm_weight(const GemvArgs& args, float2 (&w)[norm_pairs]) {
#pragma unroll
    for (int j = 0; j < norm_pairs; ++j)
        if (const uint32_t pair = threadIdx.x + j * blockDim.x; pair < args.x_bytes / 4)
            w[j] = reinterpret_cast<const float2*>(args.norm.weight)[pair];
}

// The thread blocks of GemvArgs::side: chunked_kernel's order, a warp for each of eight chunks. Shared memory: x, 16
// rows of W, norm_row_bytes().
__device__ void side_rows(const GemvArgs& args, uint8_t* shared) {
    const GemvSide& side = args.side;
    const int row_tile = static_cast<int>(blockIdx.x) - args.blocks, thread = static_cast<int>(threadIdx.x);
    const int warp = thread / 32, lane = thread % 32, threads = static_cast<int>(blockDim.x);
    const uint32_t weights_at = shared_address(shared) + args.x_pitch;
    const uint8_t* from =
        side.tiles + int64_t{row_tile / 4} * side.k_tiles * operand_tile_bytes + row_tile % 4 * operand_row_tile_bytes;
    for (int i = thread; i < side.k_tiles * (operand_row_tile_bytes / 16); i += threads)
        copy16_or_zero(weights_at + 16 * i,
                       from + int64_t{i / (operand_row_tile_bytes / 16)} * operand_tile_bytes +
                           16 * (i % (operand_row_tile_bytes / 16)),
                       true);
    float2 norm_weight[norm_pairs];
    load_norm_weight(args, norm_weight);
    if (args.overlap) {
        overlap_next();
        wait_for_previous();
    }
    auto* row = reinterpret_cast<float*>(shared + args.x_pitch + side.k_tiles * operand_row_tile_bytes);
    normed_input(args, row, reinterpret_cast<uint32_t*>(shared), norm_weight);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    if (warp < matmul_chunks) {
        const int chunk_tiles = (side.k_tiles + matmul_chunks - 1) / matmul_chunks;
        const int first = min(warp * chunk_tiles, side.k_tiles), last = min(first + chunk_tiles, side.k_tiles);
        float acc[4] = {};
        for (int t = first; t < last; ++t) {
            const uint32_t piece = weights_at + t * operand_row_tile_bytes + lane % 16 * 128;
            const uint8_t* x = shared + 128 * t + 4 * (lane % 4);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                uint32_t a[4];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                             : "r"(piece + ((2 * j + lane / 16) ^ lane % 8) * 16)
                             : "memory");
                multiply_add(acc, a, *reinterpret_cast<const uint32_t*>(x + 32 * j),
                             *reinterpret_cast<const uint32_t*>(x + 32 * j + 16));
            }
        }
        if (lane % 4 == 0) row[16 * warp + lane / 4] = acc[0], row[16 * warp + lane / 4 + 8] = acc[2];
    }
    __syncthreads();
    const int out = row_tile * 16 + thread;
    if (thread >= 16 || out >= side.n) return;
    float sums[matmul_chunks];
#pragma unroll
    for (int c = 0; c < matmul_chunks; ++c) sums[c] = row[16 * c + thread];
    side.y[out] = product_output(tree_sum(sums), side.row_scales ? side.row_scales[out] : side.scale,
                                 side.bias ? side.bias[out] : 0.0f);
}

// Split = 2: a cluster of two thread blocks shares the same rows; block r takes chunks 4 r ... 4 r + 3 and that part of
// x only. Shared memory: x [tokens][x_pitch], slots per warp [Slots][record_bytes], barriers per warp [Slots].
template <int ChunksPerWarp, int Split, int Slots>
__global__ void __launch_bounds__(1024, 1) gemv_kernel(const __grid_constant__ GemvArgs args) {
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int block_chunks = matmul_chunks / Split, warps_per_tile = block_chunks / ChunksPerWarp;
    if (Split == 1 && static_cast<int>(blockIdx.x) >= args.blocks) return side_rows(args, shared);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    const int rank = Split == 1 ? 0 : static_cast<int>(blockIdx.x) % Split;
    const int first_tile = static_cast<int>(blockIdx.x) / Split * args.tiles;
    const uint32_t x_at = shared_address(shared);
    const uint32_t slots_at = x_at + args.x_pitch * args.tokens;
    constexpr int warp_bytes = Slots * w4a16::record_bytes;
    const uint32_t slot_at = slots_at + warp * warp_bytes;
    const uint32_t barrier = slots_at + warps * warp_bytes + warp * Slots * 8;

    // Records [block_first, ...) of a row tile are the block's, [block_first + first, ...) the warp's.
    const int tile = first_tile + warp / warps_per_tile;
    const int block_first = min(rank * block_chunks * args.chunk_records, args.row_records);
    const int block_count = min(block_chunks * args.chunk_records, args.row_records - block_first);
    const int first = min(warp % warps_per_tile * ChunksPerWarp * args.chunk_records, block_count);
    const int count = tile < args.row_tiles ? min(ChunksPerWarp * args.chunk_records, block_count - first) : 0;
    const uint8_t* from = args.records + (int64_t{tile} * args.row_records + block_first + first) * w4a16::record_bytes;
    const auto request = [&](int i, uint32_t slot) {
        barrier_expect(barrier + 8 * slot, w4a16::record_bytes);
        bulk_copy(slot_at + slot * w4a16::record_bytes, from + int64_t{i} * w4a16::record_bytes, w4a16::record_bytes,
                  barrier + 8 * slot);
    };

    if (lane == 0) {
        for (int s = 0; s < Slots; ++s) barrier_init(barrier + 8 * s, 1);
        barrier_init_done();
        for (int s = 0; s < min(Slots, count); ++s) request(s, s);
    }
    float2 norm_weight[norm_pairs];
    if (Split == 1 && args.norm.h) load_norm_weight(args, norm_weight);
    // Weights may come before the kernel ahead is done; x may not. It does not take the copy engine, where it would
    // queue behind the records of all warps.
    if (args.overlap) {
        overlap_next();
        wait_for_previous();
    }
    constexpr int record_x_bytes = w4a16::record_cols * 2;
    if (Split == 1 && args.norm.h)
        normed_input(args, reinterpret_cast<float*>(shared + (slots_at - x_at) + warps * (warp_bytes + 8 * Slots)),
                     reinterpret_cast<uint32_t*>(shared), norm_weight);
    for (int t = 0; t < (Split == 1 && args.norm.h ? 0 : args.tokens); ++t)
        for (int at = static_cast<int>(threadIdx.x) * 16; at < block_count * record_x_bytes; at += blockDim.x * 16) {
            const uint32_t column = static_cast<uint32_t>(block_first * record_x_bytes + at);  // in bytes
            const bool present = column < args.x_bytes;
            copy16_or_zero(x_at + t * args.x_pitch + at, args.x + int64_t{t} * args.x_bytes + (present ? column : 0),
                           present);
        }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();

    const uint8_t* x = shared + min(lane / 4, args.tokens - 1) * args.x_pitch + lane % 4 * 32 + first * record_x_bytes;
    uint8_t* slot = shared + (slot_at - x_at);
    float part[ChunksPerWarp][4];
    int i = 0;
    uint32_t at = 0, parity = 0;
#pragma unroll
    for (int p = 0; p < ChunksPerWarp; ++p) {
        float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const int end = min((p + 1) * args.chunk_records, count);
#pragma unroll 1
        for (; i < end; ++i) {
            barrier_wait(barrier + 8 * at, parity);
            const uint8_t* record = slot + at * w4a16::record_bytes;
            uint4 codes[w4a16::record_blocks];
#pragma unroll
            for (int b = 0; b < w4a16::record_blocks; ++b)
                codes[b] = *reinterpret_cast<const uint4*>(record + 512 * b + 16 * lane);
            const uint2 scales = *reinterpret_cast<const uint2*>(record + w4a16::record_code_bytes + 8 * lane);
            __syncwarp();
            if (lane == 0 && i + Slots < count) request(i + Slots, at);
            if (++at == Slots) at = 0, parity ^= 1;
#pragma unroll
            for (int b = 0; b < w4a16::record_blocks; ++b) {
                const uint4* x_at_block = reinterpret_cast<const uint4*>(x + 128 * b);
                const uint4 columns[2] = {x_at_block[0], x_at_block[1]};
                block64(acc, codes[b], ScalePairs(scales, b, args.scale_bits), columns);
            }
            x += record_x_bytes;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) part[p][e] = acc[e];
    }

    // Partial sums [16 rows][8 tokens] of each chunk lie over the warp's first slot, which nobody fills any more.
    float* own = reinterpret_cast<float*>(slot);
    __syncwarp();
#pragma unroll
    for (int p = 0; p < ChunksPerWarp; ++p) {
        float2* at = reinterpret_cast<float2*>(own + 128 * p + lane / 4 * 8 + lane % 4 * 2);
        at[0] = {part[p][0], part[p][1]};
        at[32] = {part[p][2], part[p][3]};
    }
    if constexpr (Split == 1)
        __syncthreads();
    else
        cluster_sync();
    const auto output = [&](int token, int row) {
        const uint32_t sums_at = slots_at + row / 16 * warps_per_tile * warp_bytes + (row % 16 * 8 + token) * 4;
        const auto chunk = [&](int c) {
            const int local = c % block_chunks;
            const uint32_t place = sums_at + local / ChunksPerWarp * warp_bytes + local % ChunksPerWarp * 512;
            if constexpr (Split == 1)
                return *reinterpret_cast<const float*>(shared + (place - x_at));
            else
                return cluster_float(place, c / block_chunks);
        };
        float sums[matmul_chunks];
#pragma unroll
        for (int c = 0; c < matmul_chunks; ++c) sums[c] = chunk(c);
        return w4a16_output(tree_sum(sums), args.factors, min(first_tile * 16 + row, args.n - 1));
    };
    const int rows = args.tiles * 16;
    // Blocks of a cluster take turns.
    const int begin = rank * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    const int step = Split * static_cast<int>(blockDim.x);
    if (args.gated && !args.paired) {
        for (int o = begin; o < rows * args.tokens; o += step) {
            const int token = o / rows, row = o % rows, out = first_tile * 16 + row;
            if (out < args.n)
                args.gated[int64_t{token} * args.n + out] =
                    bf16_from_float(act(args.activation, rounded(output(token, row))));
        }
    } else if (args.gated) {
        for (int o = begin; o < rows / 2 * args.tokens; o += step) {
            const int token = o / (rows / 2), place = o % (rows / 2), row = place / 16 * 32 + place % 16;
            if (first_tile * 16 + row >= args.n) continue;
            const float gate = act(args.activation, rounded(output(token, row)));
            args.gated[int64_t{token} * (args.n / 2) + first_tile * 8 + place] =
                bf16_from_float(gate * rounded(output(token, row + 16)));
        }
    } else {
        for (int o = begin; o < rows * args.tokens; o += step) {
            const int token = o / rows, row = o % rows, out = first_tile * 16 + row;
            if (out < args.n) args.y[token * args.factors.y_stride + out] = output(token, row);
        }
    }
    if constexpr (Split > 1) cluster_sync();  // nobody leaves while its sums are read
}

template <int ChunksPerWarp, int Split, int Slots>
cudaError_t launch(GemvArgs args, int64_t shared_bytes, cudaStream_t stream) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {Split, 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    args.blocks = (args.row_tiles + args.tiles - 1) / args.tiles * Split;
    config.gridDim = static_cast<unsigned>(args.blocks + args.side.row_tiles);
    config.blockDim = static_cast<unsigned>(32 * args.tiles * (matmul_chunks / Split / ChunksPerWarp));
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = args.overlap ? 2 : 1;
    return cudaLaunchKernelEx(&config, gemv_kernel<ChunksPerWarp, Split, Slots>, args);
}
template <int ChunksPerWarp, int Split>
cudaError_t launch(const GemvArgs& args, const GemvShape& shape, cudaStream_t stream) {
    return shape.slots == 2 ? launch<ChunksPerWarp, Split, 2>(args, shape.shared_bytes, stream)
                            : launch<ChunksPerWarp, Split, 1>(args, shape.shared_bytes, stream);
}

}  // namespace

cudaError_t launch_gemv(const GemvArgs& args, const GemvShape& shape, cudaStream_t stream) {
    switch (10 * shape.chunks_per_warp + shape.split) {
        case 11:
            return launch<1, 1>(args, shape, stream);
        case 21:
            return launch<2, 1>(args, shape, stream);
        case 41:
            return launch<4, 1>(args, shape, stream);
        case 12:
            return launch<1, 2>(args, shape, stream);
        case 22:
            return launch<2, 2>(args, shape, stream);
        case 42:
            return launch<4, 2>(args, shape, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

int norm_row_bytes(int width) { return norm_shared_bytes(width) + 16; }

cudaError_t allow_gemv_shared(int64_t bytes) {
    for (const auto kernel : {gemv_kernel<1, 1, 1>, gemv_kernel<2, 1, 1>, gemv_kernel<4, 1, 1>, gemv_kernel<1, 2, 1>,
                              gemv_kernel<2, 2, 1>, gemv_kernel<4, 2, 1>, gemv_kernel<1, 1, 2>, gemv_kernel<2, 1, 2>,
                              gemv_kernel<4, 1, 2>, gemv_kernel<1, 2, 2>, gemv_kernel<2, 2, 2>, gemv_kernel<4, 2, 2>})
        if (const cudaError_t code =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)))
            return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
