// Stores elements in a tile of the cache.
#pragma once

#include "kernels/cuda/elementwise/elementwise_launch.h"

namespace nibble::cuda {

// Returns the tile of a slot (page * page_tokens + position in the page) and KV head.
__device__ inline uint8_t* tile_of_slot(const CacheArgs& c, int head, int64_t slot) {
    // 32 bits are enough for any cache, and 64-bit divisions would take longer than the rest.
    const auto page = static_cast<uint32_t>(slot) / static_cast<uint32_t>(c.page_tokens);
    const int in_page = static_cast<int>(static_cast<uint32_t>(slot) % static_cast<uint32_t>(c.page_tokens));
    return c.pages + int64_t{page} * c.page_stride +
           int64_t{head * (c.page_tokens / kv_tile_tokens) + in_page / kv_tile_tokens} *
               kv_tile_bytes(c.type, c.padded);
}

// x: a BF16 value; scales of an E4M3 cache, null for 1.
__device__ inline void store_element(KvType type, uint8_t* at, uint16_t x, const float* scales, int head) {
    if (type == KvType::bf16)
        *reinterpret_cast<uint16_t*>(at) = x;
    else
        *at = e4m3_from_float_saturating(scales ? bf16_to_float(x) / scales[head] : bf16_to_float(x));
}

// Stores a head's row of K or V with one warp: element(d) for d below the head's size, zeros after.
template <class Element>
__device__ void store_k(const CacheArgs& c, int head, int64_t slot, int lane, Element element) {
    const int t = static_cast<int>(slot) % kv_tile_tokens;  // pages are whole tiles
    uint8_t* tile = tile_of_slot(c, head, slot);
    for (int d = lane; d < c.padded.k; d += 32)
        store_element(c.type, tile + k_offset(c.type, t, d), d < c.dims.k ? element(d) : 0, c.k_scales, head);
}
template <class Element>
__device__ void store_v(const CacheArgs& c, int head, int64_t slot, int lane, Element element) {
    const int t = static_cast<int>(slot) % kv_tile_tokens;  // pages are whole tiles
    uint8_t* tile = tile_of_slot(c, head, slot) + k_tile_bytes(c.type, c.padded);
    for (int d = lane; d < c.padded.v; d += 32)
        store_element(c.type, tile + v_offset(c.type, t, d), d < c.dims.v ? element(d) : 0, c.v_scales, head);
}

}  // namespace nibble::cuda
