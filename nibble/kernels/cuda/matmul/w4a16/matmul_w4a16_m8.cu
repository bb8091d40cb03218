// W4A16 for one to eight tokens. A thread block processes `tiles` tiles of 16 rows and all of K (or half of it, see
// Split); a warp processes one, two or four chunks of a tile's K in sequence.
//
// A warp owns a slot in shared memory. It requests a record from the copy engine, waits, moves the record into
// registers, requests the next one and then computes, so loads of one warp overlap the arithmetic of all others. Thread
// blocks of few warps have two slots per warp, because one does not keep enough bytes in flight. (With 32 warps a
// second slot delays the last warps: 11 % slower at 8192 x 8192.) x stays in shared memory for the whole kernel. Lanes
// of absent tokens read a present one: their columns are never stored.
#include "kernels/cuda/matmul/w4a16/matmul_launch.h"
#include "kernels/cuda/matmul/w4a16/w4a16_decode.cuh"
#include "kernels/cuda/matmul/w4a16/w4a16_norm.cuh"
#include "kernels/cuda/primitives/ptx.cuh"

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

// Split = 2: a cluster of two thread blocks shares the same rows; block r takes chunks 4 r ... 4 r + 3 and that part of
// x only. Shared memory: x [tokens][x_pitch], slots per warp [Slots][record_bytes], barriers per warp [Slots].
template <int ChunksPerWarp, int Split, int Slots>
__global__ void __launch_bounds__(1024, 1) matmul_w4a16_m8_kernel(const __grid_constant__ GemvArgs args) {
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
    const auto request = [&](int i, uint32_t slot, uint32_t zero) {
        barrier_expect(barrier + 8 * slot + zero, w4a16::record_bytes);
        bulk_copy(zero + slot_at + slot * w4a16::record_bytes, from + int64_t{i} * w4a16::record_bytes,
                  w4a16::record_bytes, barrier + 8 * slot);
    };

    if (lane == 0) {
        for (int s = 0; s < Slots; ++s) barrier_init(barrier + 8 * s, 1);
        barrier_init_done();
        for (int s = 0; s < min(Slots, count); ++s) request(s, s, 0);
    }
    // Loads the factors of the outputs early; otherwise the thread block would wait for them at its end.
    if (const int row = first_tile * 16 + static_cast<int>(threadIdx.x);
        static_cast<int>(threadIdx.x) < args.tiles * 16 && row < args.n) {
        const OutputFactors& f = args.factors;
        if (f.row_scales || f.tensor_scale) prefetch(f.row_scales ? f.row_scales + row : f.tensor_scale);
        if (f.bias) prefetch(f.bias + row);
    }
    float2 norm_weight[norm_pairs];
    if (Split == 1 && args.norm.h) load_norm_weight(args, norm_weight);
    // Weights may be loaded before the previous kernel ends, x only after. x does not use the copy engine, where it
    // would queue after the records of all warps.
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
            // With two slots the other one is in flight: the first products come before the wait for the loads (4 %).
            const auto ask_again = [&] {
                const uint32_t zero = zero_after(codes, scales, lane);
                __syncwarp();
                if (lane == 0 && i + Slots < count) request(i + Slots, at, zero);
                if (++at == Slots) at = 0, parity ^= 1;
            };
            if constexpr (Slots == 1) ask_again();
#pragma unroll
            for (int b = 0; b < w4a16::record_blocks; ++b) {
                const uint4* x_at_block = reinterpret_cast<const uint4*>(x + 128 * b);
                const uint4 columns[2] = {x_at_block[0], x_at_block[1]};
                block64(acc, codes[b], ScalePairs(scales, b, args.scale_bits), columns);
                if (Slots > 1 && b == 0) ask_again();
            }
            x += record_x_bytes;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) part[p][e] = acc[e];
    }

    // Partial sums [16 rows][8 tokens] of each chunk overwrite the warp's first slot, which is no longer filled.
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
    const auto token_of = [&](int o, int width) { return args.tokens == 1 ? 0 : o / width; };  // avoids divisions
    // The blocks of a cluster alternate.
    const int begin = rank * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    const int step = Split * static_cast<int>(blockDim.x);
    if (args.gated && !args.paired) {
        for (int o = begin; o < rows * args.tokens; o += step) {
            const int token = token_of(o, rows), row = o - token * rows, out = first_tile * 16 + row;
            if (out < args.n)
                args.gated[int64_t{token} * args.n + out] =
                    bf16_from_float(act(args.activation, rounded(output(token, row))));
        }
    } else if (args.gated) {
        for (int o = begin; o < rows / 2 * args.tokens; o += step) {
            const int token = token_of(o, rows / 2), place = o - token * (rows / 2), row = place / 16 * 32 + place % 16;
            if (first_tile * 16 + row >= args.n) continue;
            const float gate = act(args.activation, rounded(output(token, row)));
            args.gated[int64_t{token} * (args.n / 2) + first_tile * 8 + place] =
                bf16_from_float(gate * rounded(output(token, row + 16)));
        }
    } else {
        for (int o = begin; o < rows * args.tokens; o += step) {
            const int token = token_of(o, rows), row = o - token * rows, out = first_tile * 16 + row;
            if (out < args.n) args.y[token * args.factors.y_stride + out] = output(token, row);
        }
    }
    if constexpr (Split > 1) cluster_sync();  // keeps shared memory alive until the other block has read it
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
    return cudaLaunchKernelEx(&config, matmul_w4a16_m8_kernel<ChunksPerWarp, Split, Slots>, args);
}
template <int ChunksPerWarp, int Split>
cudaError_t launch(const GemvArgs& args, const GemvShape& shape, cudaStream_t stream) {
    return shape.slots == 2 ? launch<ChunksPerWarp, Split, 2>(args, shape.shared_bytes, stream)
                            : launch<ChunksPerWarp, Split, 1>(args, shape.shared_bytes, stream);
}

}  // namespace

cudaError_t launch_matmul_w4a16_m8(const GemvArgs& args, const GemvShape& shape, cudaStream_t stream) {
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
    for (const auto kernel :
         {matmul_w4a16_m8_kernel<1, 1, 1>, matmul_w4a16_m8_kernel<2, 1, 1>, matmul_w4a16_m8_kernel<4, 1, 1>,
          matmul_w4a16_m8_kernel<1, 2, 1>, matmul_w4a16_m8_kernel<2, 2, 1>, matmul_w4a16_m8_kernel<4, 2, 1>,
          matmul_w4a16_m8_kernel<1, 1, 2>, matmul_w4a16_m8_kernel<2, 1, 2>, matmul_w4a16_m8_kernel<4, 1, 2>,
          matmul_w4a16_m8_kernel<1, 2, 2>, matmul_w4a16_m8_kernel<2, 2, 2>, matmul_w4a16_m8_kernel<4, 2, 2>})
        if (const cudaError_t code = allow_shared_memory(kernel, bytes)) return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
