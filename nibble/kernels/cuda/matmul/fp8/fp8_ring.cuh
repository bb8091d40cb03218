// Shared by both kernels of W8A8 products: their tiles, and the copies into a ring buffer of stages that two thread
// blocks of a cluster fill together.
#pragma once

#include "formats/minifloat.h"
#include "kernels/cuda/matmul/bf16/operand_launch.h"
#include "kernels/cuda/primitives/ptx.cuh"
#include "kernels/cuda/primitives/tensor_map.cuh"

#include <algorithm>
#include <cstdint>

namespace nibble::cuda {

inline constexpr int fp8_group_cols = 128;  // columns of K between two promotions

// Copies to all thread blocks of a cluster, at the same address in each.
template <int Cluster>
__device__ void load_3d_for_all(uint32_t to, const CUtensorMap* map, int x, int y, int z, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(static_cast<uint16_t>((1 << Cluster) - 1))
        : "memory");
}
__device__ inline float shared_float(uint32_t at) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(at));
    return value;
}

// The tiles of a product: adjacent tiles share weights and tokens; bands of token tiles, then rows.
struct OutputTiles {
    static constexpr int band = 8;
    int rows, tokens, row_blocks, token_tiles, count;

    __device__ OutputTiles(const ProductArgs& p, int tile_rows, int tile_tokens)
        : rows(tile_rows),
          tokens(tile_tokens),
          row_blocks((p.n + rows - 1) / rows),
          token_tiles((p.tokens + tokens - 1) / tokens),
          count(row_blocks * token_tiles) {}
    // Returns the first token and the first row of tile i.
    __device__ int2 at(int i) const {
        const int first = i / (band * row_blocks) * band, in_band = i % (band * row_blocks);
        const int tiles = min(band, token_tiles - first);
        return {(first + in_band % tiles) * tokens, in_band / tiles * rows};
    }
};

// Stores two adjacent elements of y at `at`, as FP32 or rounded; `pairs`: with one store, `both`: whether both exist.
__device__ inline void store_output2(const ProductArgs& p, int64_t at, float2 v, bool pairs, bool both) {
    if (p.y16) {
        const uint16_t low = bf16_from_float(v.x), high = bf16_from_float(v.y);
        if (pairs) {
            *reinterpret_cast<uint32_t*>(p.y16 + at) = low | uint32_t{high} << 16;
        } else {
            p.y16[at] = low;
            if (both) p.y16[at + 1] = high;
        }
    } else if (pairs) {
        *reinterpret_cast<float2*>(p.y + at) = v;
    } else {
        p.y[at] = v.x;
        if (both) p.y[at + 1] = v.y;
    }
}

inline int64_t fp8_tiles(const ProductArgs& p, int rows, int tokens) {
    return (int64_t{p.n} + rows - 1) / rows * ((p.tokens + tokens - 1) / tokens);
}

// As many clusters of thread blocks as there are tiles or as fit.
template <class... Parameters, class... Arguments>
cudaError_t launch_fp8_kernel(void (*kernel)(Parameters...), int cluster, int64_t tiles, int threads, int shared_bytes,
                              bool overlap, int multiprocessors, cudaStream_t stream, const Arguments&... arguments) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(std::min<int64_t>(tiles, multiprocessors / cluster) * cluster);
    config.blockDim = static_cast<unsigned>(threads);
    config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = overlap ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

// Tensor maps of x and W for boxes of `token_rows` tokens or `rows` rows by `groups` groups of 128 columns.
inline bool encode_fp8_maps(CUtensorMap& x_map, CUtensorMap& w_map, const ProductArgs& p, int token_rows, int rows,
                            int groups) {
    const auto k_groups = static_cast<cuuint64_t>((p.k + fp8_group_cols - 1) / fp8_group_cols);
    return encode_3d(x_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, p.x,
                     {fp8_group_cols, static_cast<cuuint64_t>(p.tokens), k_groups},
                     {static_cast<cuuint64_t>(p.x_stride), fp8_group_cols},
                     {fp8_group_cols, static_cast<cuuint32_t>(token_rows), static_cast<cuuint32_t>(groups)},
                     CU_TENSOR_MAP_SWIZZLE_128B) &&
           encode_3d(w_map, CU_TENSOR_MAP_DATA_TYPE_INT32, p.tiles,
                     {256, k_groups, static_cast<cuuint64_t>((p.n + 7) / 8)}, {1024, 1024 * k_groups},
                     {256, static_cast<cuuint32_t>(groups), static_cast<cuuint32_t>(rows / 8)},
                     CU_TENSOR_MAP_SWIZZLE_NONE);
}

// Returns true if scales of 128 columns can be copied for four groups at a time; makes the map of the tokens' scales.
inline bool fp8_scales_in_fours(const ProductArgs& p) {
    const auto is_aligned = [](const float* v) { return reinterpret_cast<uintptr_t>(v) % 16 == 0; };
    return (p.k + fp8_group_cols - 1) / fp8_group_cols % 4 == 0 && is_aligned(p.tile_scales) &&
           is_aligned(p.group_scales);
}
inline bool encode_fp8_scales(CUtensorMap& map, const ProductArgs& p, int token_rows) {
    const auto groups = static_cast<cuuint64_t>((p.k + fp8_group_cols - 1) / fp8_group_cols);
    const auto tokens = static_cast<cuuint64_t>(p.tokens);
    return encode_3d(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.group_scales, {groups, tokens, 1},
                     {4 * groups, 4 * groups * tokens}, {4, static_cast<cuuint32_t>(token_rows), 1},
                     CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace nibble::cuda
