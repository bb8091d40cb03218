// Products of exact operands for many tokens, with wgmma and both operands in shared memory. A thread block has 128
// rows of W and 128 or 256 tokens: two warpgroups of 64 rows each, and one that keeps a ring buffer of stages of 64
// columns full. For 16 to 128 tokens, where W's bytes dominate, it has 64 rows and one computing warpgroup. A thread
// block of many tokens processes one tile after the other: the ring buffer fills with the next tile's columns while
// outputs are stored. Two thread blocks of a cluster have the same tokens, and each loads half of x for both. This
// reduces reads of the L2 (without it 48 instead of 32 bytes per clock and multiprocessor, more than the L2 delivers).
#include "formats/minifloat.h"
#include "kernels/cuda/matmul/bf16/rounded_tile.cuh"
#include "kernels/cuda/primitives/tensor_map.cuh"
#include "kernels/cuda/primitives/wgmma_shared.cuh"

#include <algorithm>

namespace nibble::cuda {
namespace {

constexpr int cluster = 2, all_bytes = 227 * 1024;
// Any even number is correct; this one fills an H200.
constexpr int64_t one_wave = 132;

// RowGroups: warpgroups of 64 rows. Shared memory: stages, output tiles of two warpgroups, barriers.
template <int Tokens, bool ByTile, int RowGroups>
struct WideLayout {
    static constexpr int block_rows = 64 * RowGroups, threads = 128 * (RowGroups + 1);
    static constexpr int w_bytes = block_rows * 128, x_bytes = Tokens * 128, stage_bytes = w_bytes + x_bytes;
    // With many tokens a thread block processes several tiles, and outputs have their own memory.
    static constexpr bool persistent = RowGroups > 1 && !ByTile;
    static constexpr int out_bytes = persistent ? RowGroups * rounded_tile_bytes : 0;
    static constexpr int bytes(int stages) {  // stages begin at a multiple of 1024
        return stages * (stage_bytes + 16) + out_bytes + 1024;
    }
    // As many as fit if `blocks` thread blocks share a multiprocessor.
    static constexpr int stages(int blocks) { return (all_bytes / blocks - out_bytes - 2048) / (stage_bytes + 16); }
};

__device__ void load_x(uint32_t to, const CUtensorMap* map, int column, int token, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(token), "r"(barrier), "h"(static_cast<uint16_t>(3))
        : "memory");
}

template <int Tokens, bool ByTile, int RowGroups>
__global__ void __cluster_dims__(cluster, 1, 1)
    __launch_bounds__(WideLayout<Tokens, ByTile, RowGroups>::threads, RowGroups == 1 ? 2 : 1)
        sm90_matmul_bf16_kernel(const __grid_constant__ ProductArgs args, const __grid_constant__ CUtensorMap x_map) {
    using L = WideLayout<Tokens, ByTile, RowGroups>;
    extern __shared__ __align__(128) uint8_t shared_bytes[];
    const uint32_t base = (shared_address(shared_bytes) + 1023u) & ~1023u;
    const auto stages = static_cast<uint32_t>(args.stages);
    const uint32_t outputs = base + stages * L::stage_bytes;
    const uint32_t full = outputs + L::out_bytes, empty = full + 8 * stages;
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
    const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));

    // Clusters of one wave share weights and tokens: bands of token tiles, then rows.
    constexpr int block_rows = L::block_rows;
    const int row_pairs = (args.row_tiles + 2 * block_rows / 16 - 1) / (2 * block_rows / 16);
    const int token_tiles = (args.tokens + Tokens - 1) / Tokens, band = args.warps;
    struct Place {
        int row, token;
    };
    const auto place_of = [&](int pair_tile) -> Place {
        const int first_tile = pair_tile / (band * row_pairs) * band, in_band = pair_tile % (band * row_pairs);
        const int tiles_here = min(band, token_tiles - first_tile);
        return {(in_band / tiles_here * cluster + static_cast<int>(rank)) * block_rows,
                (first_tile + in_band % tiles_here) * Tokens};
    };
    const int pair_tiles = row_pairs * token_tiles, first_pair_tile = static_cast<int>(blockIdx.x) / cluster;
    const int pairs_at_once = static_cast<int>(gridDim.x) / cluster;

    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < stages; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, cluster * RowGroups);
        }
        barrier_init_done();
    }
    cluster_sync();
    if (args.overlap) overlap_next();
    if (group == RowGroups) {
        if constexpr (RowGroups > 1) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp % 4 == 0 && lane == 0) {
            const auto load_w = [&](const Place& at, int s, uint32_t slot) {
                const int present = max(0, min(RowGroups, (args.n + 63) / 64 - at.row / 64));
                barrier_expect(full + 8 * slot, present * operand_tile_bytes + L::x_bytes);
                for (int b = 0; b < present; ++b)
                    bulk_copy(base + slot * L::stage_bytes + b * operand_tile_bytes,
                              args.tiles + (int64_t{at.row / 64 + b} * args.k_tiles + s) * operand_tile_bytes,
                              operand_tile_bytes, full + 8 * slot);
            };
            // The first stages' weights are loaded before the previous kernel ends.
            int ahead = min(args.k_tiles, args.stages);
            for (int s = 0; s < ahead; ++s) load_w(place_of(first_pair_tile), s, static_cast<uint32_t>(s));
            if (args.overlap) wait_for_previous();
            uint32_t slot = 0, parity = 1;
            for (int tile = first_pair_tile; tile < pair_tiles; tile += pairs_at_once) {
                const Place at = place_of(tile);
                for (int s = 0; s < args.k_tiles; ++s) {
                    if (ahead > 0) {
                        --ahead;
                    } else {
                        barrier_wait(empty + 8 * slot, parity);
                        load_w(at, s, slot);
                    }
                    load_x(base + slot * L::stage_bytes + L::w_bytes + rank * (L::x_bytes / 2), &x_map, s * 64,
                           at.token + static_cast<int>(rank) * (Tokens / 2), full + 8 * slot);
                    if (++slot == stages) slot = 0, parity ^= 1;
                }
            }
        }
    } else {
        if constexpr (RowGroups > 1) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (ByTile && args.overlap) wait_for_previous();  // the previous kernel may write the scales
        const auto release = [&](uint32_t slot, bool condition) {
            for (uint32_t r = 0; r < cluster; ++r)
                barrier_arrive_at(empty + 8 * slot, r, threadIdx.x % 128 == 0 && condition);
        };
        const int across = (args.k + 127) / 128;
        uint32_t slot = 0, parity = 0;
#pragma unroll 1
        for (int tile = first_pair_tile; tile < pair_tiles; tile += pairs_at_once) {
            const Place at = place_of(tile);
            const int first_row = at.row + 64 * group + warp % 4 * 16 + g;
            float acc[Tokens / 2], total[ByTile ? Tokens / 2 : 1];
            if constexpr (ByTile) {  // braces: see sm90_matmul_fp8.cu
#pragma unroll
                for (float& v : total) v = 0.0f;
            }
#pragma unroll 1
            for (int s = 0; s < args.k_tiles; ++s) {
                const uint32_t stage = base + slot * L::stage_bytes;
                barrier_wait(full + 8 * slot, parity);
                const uint32_t rows = swizzled_operand(stage + group * operand_tile_bytes);
                const uint32_t columns = swizzled_operand(stage + L::w_bytes);
                wgmma_fence();
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    WgmmaShared<Tokens>::run(acc, rows + 2 * j, columns + 2 * j, ByTile ? s % 2 + j > 0 : s + j > 0);
                wgmma_commit();
                if constexpr (ByTile) {
                    wgmma_wait<0>();
                    release(slot, true);
                    if (s % 2 == 1 || s + 1 == args.k_tiles) {
                        float of_tile[2];
#pragma unroll
                        for (int h = 0; h < 2; ++h)
                            of_tile[h] =
                                args.tile_scales[int64_t{min(first_row + 8 * h, args.n - 1) >> args.tile_shift} *
                                                     across +
                                                 s / 2];
#pragma unroll
                        for (int i = 0; i < Tokens / 8; ++i)
#pragma unroll
                            for (int e = 0; e < 2; ++e) {
                                const int token = min(at.token + 8 * i + 2 * c + e, args.tokens - 1);
                                const float of_group =
                                    args.group_scales ? args.group_scales[int64_t{token} * across + s / 2] : 1.0f;
#pragma unroll
                                for (int h = 0; h < 2; ++h) {
                                    float& to = total[4 * i + 2 * h + e];
                                    to = fmaf(acc[4 * i + 2 * h + e], of_group * of_tile[h], to);
                                }
                            }
                    }
                } else {
                    // The previous stage is free once only the current products are in flight.
                    wgmma_wait<1>();
                    release(slot > 0 ? slot - 1 : stages - 1, s > 0);
                }
                if (++slot == stages) slot = 0, parity ^= 1;
            }
            wgmma_wait<0>();
            if (!ByTile && args.overlap) wait_for_previous();
            if constexpr (L::persistent) {
                pin(acc);
                release(slot > 0 ? slot - 1 : stages - 1, true);
                if (args.y16 && args.y_stride % 8 == 0) {
                    store_rounded<Tokens>(acc, args, at.row + 64 * group, at.token, group,
                                          outputs + group * rounded_tile_bytes);
                    continue;
                }
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = first_row + 8 * h;
                if (row >= args.n) continue;
                const RowFactors factors(args, 0, row);
#pragma unroll
                for (int i = 0; i < Tokens / 8; ++i)
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int token = at.token + 8 * i + 2 * c + e;
                        if (token >= args.tokens) continue;
                        const float sum = ByTile ? total[ByTile ? 4 * i + 2 * h + e : 0] : acc[4 * i + 2 * h + e];
                        const float y = product_output(sum, factors.scale * token_factor(args, token), factors.bias);
                        const int64_t to = token * args.y_stride + row;
                        if (args.y16)
                            args.y16[to] = bf16_from_float(y);
                        else
                            args.y[to] = y;
                    }
            }
            if constexpr (!L::persistent) break;
        }
    }
    cluster_sync();  // no thread block ends while the other one still arrives at its barriers
}

template <int Tokens, bool ByTile, int RowGroups>
cudaError_t launch(ProductArgs args, const CUtensorMap& x_map, cudaStream_t stream) {
    using L = WideLayout<Tokens, ByTile, RowGroups>;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    const int64_t row_pairs = (args.n + 2 * L::block_rows - 1) / (2 * L::block_rows);
    const int64_t blocks = row_pairs * cluster * ((args.tokens + Tokens - 1) / Tokens);
    // Two thread blocks share a multiprocessor if there are more than fill the GPU once.
    args.stages = L::stages(RowGroups == 1 && blocks > one_wave ? 2 : 1);
    config.gridDim = static_cast<unsigned>(L::persistent ? std::min(blocks, one_wave) : blocks);
    config.blockDim = L::threads;
    config.dynamicSmemBytes = static_cast<size_t>(L::bytes(args.stages));
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = args.overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, sm90_matmul_bf16_kernel<Tokens, ByTile, RowGroups>, args, x_map);
}

template <int Tokens, bool ByTile, int RowGroups>
cudaError_t prepare() {
    return cudaFuncSetAttribute(sm90_matmul_bf16_kernel<Tokens, ByTile, RowGroups>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, all_bytes);
}

}  // namespace

cudaError_t launch_sm90_matmul_bf16(const ProductArgs& args, WideProductTile tile, cudaStream_t stream) {
    const EncodeMap encode = map_encoder();
    if (!encode) return cudaErrorNotSupported;
    CUtensorMap map;
    const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(args.k), static_cast<cuuint64_t>(args.tokens)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(args.x_stride)};
    const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(tile.tokens / 2)}, steps[2] = {1, 1};
    if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<uint8_t*>(args.x), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
        return cudaErrorInvalidValue;
    if (args.tile_scales) return launch<128, true, 2>(args, map, stream);
    if (tile.row_groups == 2)
        return tile.tokens == 256 ? launch<256, false, 2>(args, map, stream) : launch<128, false, 2>(args, map, stream);
    switch (tile.tokens) {
        case 16:
            return launch<16, false, 1>(args, map, stream);
        case 32:
            return launch<32, false, 1>(args, map, stream);
        case 64:
            return launch<64, false, 1>(args, map, stream);
        case 128:
            return launch<128, false, 1>(args, map, stream);
        default:
            return cudaErrorInvalidValue;
    }
}

cudaError_t prepare_sm90_matmul_bf16() {
    for (const auto each : {prepare<16, false, 1>, prepare<32, false, 1>, prepare<64, false, 1>, prepare<128, false, 1>,
                            prepare<128, false, 2>, prepare<256, false, 2>, prepare<128, true, 2>})
        if (const cudaError_t code = each()) return code;
    return map_encoder() ? cudaSuccess : cudaErrorNotSupported;
}

}  // namespace nibble::cuda
