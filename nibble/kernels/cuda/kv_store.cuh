// One element into a tile of the cache.
#pragma once

#include "kernels/kv_tile.h"

namespace nibble::cuda {

// The tile of a slot (page * page_tokens + place in the page) and KV head.
template <KvType Type>
__device__ uint8_t* tile_of_slot(uint8_t* pages, int64_t page_bytes, int page_tokens, int head, int64_t slot) {
    const int in_page = static_cast<int>(slot % page_tokens);
    return pages + slot / page_tokens * page_bytes +
           int64_t{head * (page_tokens / kv_tile_tokens) + in_page / kv_tile_tokens} * kv_tile_bytes(Type);
}

// x: a BF16 value; scales of the cache's E4M3, null for 1.
template <KvType Type>
__device__ void store_element(uint8_t* at, uint16_t x, const float* scales, int head) {
    if constexpr (Type == KvType::bf16)
        *reinterpret_cast<uint16_t*>(at) = x;
    else
        *at = e4m3_from_float_saturating(scales ? bf16_to_float(x) / scales[head] : bf16_to_float(x));
}

}  // namespace nibble::cuda
