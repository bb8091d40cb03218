// W8A8 on the FP8 tensor cores for many tokens: 256 tokens x 128 rows of W per thread block, with the bits of
// sm90_matmul_fp8.cu.
//
// Tiles of 128 x 128 are limited neither by the tensor cores nor by the promotion but by their inputs: 48 bytes of L2
// per clock and multiprocessor at full rate, and 160 bytes of shared memory (wgmma's operands and the copies), which
// delivers 128. Here they are 32 and 141: two thread blocks of a cluster each load half of x for both, and W is read
// from shared memory for 128 tokens per warpgroup, in two chains one after the other. A chain's 64 sums are added to
// 128 totals while the other warpgroup multiplies.
//
// Scales come through the ring buffer like x and W, so no chain waits for them.
#include "kernels/cuda/matmul/fp8/fp8_ring.cuh"
#include "kernels/cuda/matmul/matmul_epilogue.cuh"
#include "kernels/cuda/matmul/wgmma_codes.cuh"

namespace nibble::cuda {
namespace {

constexpr int cluster = 2, tile_tokens = 256, tile_rows = 128, warpgroups = 2, threads = 128 * (warpgroups + 1);
constexpr int stages = 4;
constexpr uint32_t x_bytes = tile_tokens * 128, w_bytes = tile_rows * 128, stage_bytes = x_bytes + w_bytes;
// Scales of four groups, loaded with the first of the ring buffer's four stages: of tokens [256][4], of the rows [4].
constexpr uint32_t unit_bytes = tile_tokens * 16 + 128;
// A warp's results before they are stored to y: 16 tokens x 32 rows, 40 floats apart (no bank conflicts).
constexpr uint32_t out_stride = 40, out_bytes = 16 * out_stride * 4;
constexpr uint32_t all_bytes = 1024 + stages * (stage_bytes + 16) + 2 * unit_bytes + 4 * warpgroups * out_bytes;

__device__ void store_shared(uint32_t at, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(a), "f"(b) : "memory");
}
__device__ float4 load_shared4(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

// Stores four adjacent elements of y at `at`, as FP32 or rounded; with `vectors` in one store if all are `present`.
__device__ void store_output4(const ProductArgs& p, int64_t at, const float4& v, bool vectors, int present) {
    if (vectors && present > 3) {
        if (p.y16)
            *reinterpret_cast<uint2*>(p.y16 + at) = {bf16_from_float(v.x) | uint32_t{bf16_from_float(v.y)} << 16,
                                                     bf16_from_float(v.z) | uint32_t{bf16_from_float(v.w)} << 16};
        else
            *reinterpret_cast<float4*>(p.y + at) = v;
        return;
    }
    if (present > 0) store_output2(p, at, {v.x, v.y}, false, present > 1);
    if (present > 2) store_output2(p, at + 2, {v.z, v.w}, false, present > 3);
}

template <bool ByTile>
__global__ void __launch_bounds__(threads, 1)
    sm90_matmul_fp8_m256_kernel(const __grid_constant__ ProductArgs p, const __grid_constant__ CUtensorMap x_map,
                                const __grid_constant__ CUtensorMap w_map,
                                const __grid_constant__ CUtensorMap scale_map) {
    extern __shared__ __align__(128) uint8_t shared_bytes[];
    const uint32_t base = (shared_address(shared_bytes) + 1023u) & ~1023u;
    const uint32_t scales = base + stages * stage_bytes, out = scales + 2 * unit_bytes;
    const uint32_t full = out + 4 * warpgroups * out_bytes, empty = full + 8 * stages;
    const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    uint32_t rank = 0;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));

    const OutputTiles tiles(p, tile_rows * cluster, tile_tokens);
    const int first_tile = static_cast<int>(blockIdx.x) / cluster, clusters = static_cast<int>(gridDim.x) / cluster;
    const int all_groups = (p.k + fp8_group_cols - 1) / fp8_group_cols, last_row = p.n - 1;

    const auto load_w = [&](int2 at, int n, uint32_t s, uint32_t unit) {
        const int row = at.y + static_cast<int>(rank) * tile_rows;
        const uint32_t barrier = full + 8 * s;
        const bool with_scales = ByTile && s == 0;
        barrier_expect(barrier, stage_bytes + (with_scales ? tile_tokens * 16 + 16 : 0));
        load_3d(base + s * stage_bytes + x_bytes, &w_map, 0, n, row / 8, barrier);
        if (with_scales)
            bulk_copy(scales + unit * unit_bytes + tile_tokens * 16,
                      p.tile_scales + int64_t{min(row, last_row) / 128} * all_groups + n, 16, barrier);
    };
    const bool fills = warp == 4 * warpgroups && lane == 0;
    if (fills) {
        for (int s = 0; s < stages; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, cluster * warpgroups * 4);
        }
        barrier_init_done();
        prefetch_map(&w_map);
        prefetch_map(&x_map);
        if (ByTile) prefetch_map(&scale_map);
    }
    __syncwarp();
    cluster_sync();
    if (p.overlap) overlap_next();
    if (group == warpgroups) {
        // Three warpgroups of 168 registers are 2 x 232 + 40: a request beyond that total never returns.
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (fills) {
            uint32_t slot = 0, parity = 1;
            const auto next = [&] {
                if (++slot == stages) slot = 0, parity ^= 1;
            };
            const auto load_x = [&](int2 at, int n, uint32_t s, uint32_t unit) {
                constexpr int part = tile_tokens / cluster;
                load_3d_for_all<cluster>(base + s * stage_bytes + rank * part * 128, &x_map, 0,
                                         at.x + static_cast<int>(rank) * part, n, full + 8 * s);
                if (ByTile && s == 0) load_3d(scales + unit * unit_bytes, &scale_map, n, at.x, 0, full);
            };
            for (int tile = first_tile; tile < tiles.count; tile += clusters) {
                const int2 at = tiles.at(tile);
                int n = 0;
                if (tile == first_tile) {  // weights are loaded before the previous kernel ends
                    for (int i = 0; i < min(stages, all_groups); ++i) load_w(at, i, i, 0);
                    if (p.overlap) wait_for_previous();
                    for (; n < min(stages, all_groups); ++n) load_x(at, n, n, 0), next();
                }
                for (; n < all_groups; ++n, next()) {
                    barrier_wait(empty + 8 * slot, parity);
                    load_w(at, n, slot, parity ^ 1);
                    load_x(at, n, slot, parity ^ 1);
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        if (p.overlap) wait_for_previous();
        const int g = lane / 4, c = lane % 4;
        const int first_token =
            128 * group + warp % 4 * 16;  // first token of this warp in the tile; its other 16 tokens are 64 further
        const uint32_t out_at = out + warp * out_bytes;
        constexpr uint32_t w_upper = 0x40000040u;
        float acc[64], total[2][64];
        uint32_t slot = 0, parity = 0;
#pragma unroll 1
        for (int tile = first_tile; tile < tiles.count; tile += clusters) {
#pragma unroll
            for (int v = 0; v < 64; ++v) total[0][v] = total[1][v] = 0.0f;
#pragma unroll 1
            for (int n = 0; n < all_groups; ++n) {
                const uint32_t at = base + slot * stage_bytes, scales_at = scales + parity * unit_bytes + 4 * slot;
                barrier_wait(full + 8 * slot, parity);
                [[maybe_unused]] float by[2][2] = {};
                if constexpr (ByTile) {
                    const float of_row = shared_float(scales_at + 16 * tile_tokens);
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        by[i / 2][i % 2] =
                            shared_float(scales_at + 16 * (first_token + 64 * (i / 2) + g + 8 * (i % 2))) * of_row;
                }
                const auto accumulate = [&]<int H>(std::integral_constant<int, H>) {
                    const uint32_t left = swizzled_operand(at + (128 * group + 64 * H) * 128);
                    const uint32_t right = swizzled_operand(at + x_bytes);
                    wgmma_fence();
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        WgmmaCodes<128, false>::run(acc, left + 2 * j, right + 2 * j, w_upper, j > 0);
                    wgmma_commit();
                    wgmma_wait<0>();
                    pin(acc);
                    if constexpr (H == 1) {
                        __syncwarp();
#pragma unroll
                        for (uint32_t r = 0; r < cluster; ++r) barrier_arrive_at(empty + 8 * slot, r, lane == 0);
                    }
#pragma unroll
                    for (int v = 0; v < 64; ++v)
                        if constexpr (ByTile)
                            total[H][v] = fmaf(acc[v], by[H][v / 2 % 2], total[H][v]);
                        else
                            total[H][v] = acc[v] + total[H][v];
                };
                accumulate(std::integral_constant<int, 0>());
                accumulate(std::integral_constant<int, 1>());
                if (++slot == stages) slot = 0, parity ^= 1;
            }
            const int2 at = tiles.at(tile);
            const int row = at.y + static_cast<int>(rank) * tile_rows;
            const bool vectors = p.y_stride % 4 == 0;
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                const int column = row + 32 * part + lane % 8 * 4;
                float scale[4], bias[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const RowFactors of(p, 0, min(column + i, last_row));
                    scale[i] = of.scale, bias[i] = of.bias;
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    __syncwarp();
#pragma unroll
                    for (int i = 0; i < 8; ++i) {  // tiles of eight columns, tokens g and g + 8
                        const int v = 16 * part + 2 * i;
                        store_shared(out_at + 4 * ((g + i % 2 * 8) * out_stride + 8 * (i / 2) + 2 * c), total[half][v],
                                     total[half][v + 1]);
                    }
                    __syncwarp();
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int in_warp = 4 * i + lane / 8, t = at.x + first_token + 64 * half + in_warp;
                        const float4 v = load_shared4(out_at + 4 * (in_warp * out_stride + lane % 8 * 4));
                        if (t >= p.tokens) continue;
                        const float of_token = token_factor(p, t);
                        const float4 result{product_output(v.x, scale[0] * of_token, bias[0]),
                                            product_output(v.y, scale[1] * of_token, bias[1]),
                                            product_output(v.z, scale[2] * of_token, bias[2]),
                                            product_output(v.w, scale[3] * of_token, bias[3])};
                        store_output4(p, t * p.y_stride + column, result, vectors, p.n - column);
                    }
                }
            }
        }
    }
    __syncwarp();
    cluster_sync();  // no thread block ends while the other one still arrives at its barriers
}

}  // namespace

bool fits_sm90_matmul_fp8_m256(const ProductArgs& p) { return !p.tile_scales || fp8_scales_in_fours(p); }

int64_t fp8_wide_tiles(const ProductArgs& p) { return fp8_tiles(p, cluster * tile_rows, tile_tokens); }

cudaError_t launch_sm90_matmul_fp8_m256(const ProductArgs& p, int multiprocessors, cudaStream_t stream) {
    CUtensorMap x_map, w_map, scale_map{};
    if (!encode_fp8_maps(x_map, w_map, p, tile_tokens / cluster, tile_rows, 1) ||
        (p.tile_scales && !encode_fp8_scales(scale_map, p, tile_tokens)))
        return cudaErrorInvalidValue;
    const int64_t tiles = fp8_tiles(p, cluster * tile_rows, tile_tokens);
    return launch_fp8_kernel(p.tile_scales ? sm90_matmul_fp8_m256_kernel<true> : sm90_matmul_fp8_m256_kernel<false>,
                             cluster, tiles, threads, all_bytes, p.overlap, multiprocessors, stream, p, x_map, w_map,
                             scale_map);
}

cudaError_t prepare_sm90_matmul_fp8_m256() {
    for (const auto kernel : {sm90_matmul_fp8_m256_kernel<true>, sm90_matmul_fp8_m256_kernel<false>})
        if (const cudaError_t code =
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, all_bytes))
            return code;
    return cudaSuccess;
}

}  // namespace nibble::cuda
