// A tile of the paged KV cache: 16 tokens of one KV head, K then V, in the order in which lanes of mma.m16n8k16 read
// them. Plain functions for kernels and tests.
//
// Lane 4 g + c reads with 16-byte loads: from K, panels of 64 bytes per token, bytes 16 c ... of rows g and g + 8; from
// V, the four tokens 4 c ... 4 c + 3 of dimensions 16 v + 2 g and 16 v + 2 g + 1. Token 4 c + i of a tile is row 2 c +
// i % 2 + 8 (i / 2) of K. The scores of a lane's rows are then, transposed, the operand for its four tokens of V. Heads
// of other sizes than the compiled ones are padded with zeros.
#pragma once

#include "formats/minifloat.h"

#include <cstdint>

namespace nibble::cuda {

enum class KvType : uint8_t { bf16, e4m3 };

inline constexpr int kv_tile_tokens = 16;
NIBBLE_HD constexpr int kv_element_bytes(KvType type) { return type == KvType::bf16 ? 2 : 1; }

// Padded dimensions of a head in the cache.
struct KvDims {
    int k = 0, v = 0;
    bool operator==(const KvDims&) const = default;
};
inline constexpr KvDims kv_dims[] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}, {512, 512}};  // compiled
// Returns the smallest compiled dimensions that hold a head; {0, 0} if none do.
NIBBLE_HD constexpr KvDims padded_dims(int k, int v) {
    if (k <= 64 && v <= 64) return {64, 64};
    if (k <= 128 && v <= 128) return {128, 128};
    if (k <= 192 && v <= 128) return {192, 128};
    if (k <= 256 && v <= 256) return {256, 256};
    if (k <= 512 && v <= 512) return {512, 512};
    return {0, 0};
}
NIBBLE_HD constexpr int k_tile_bytes(KvType type, KvDims d) { return kv_tile_tokens * d.k * kv_element_bytes(type); }
NIBBLE_HD constexpr int v_tile_bytes(KvType type, KvDims d) { return kv_tile_tokens * d.v * kv_element_bytes(type); }
NIBBLE_HD constexpr int kv_tile_bytes(KvType type, KvDims d) { return k_tile_bytes(type, d) + v_tile_bytes(type, d); }

// k_row(): the row of K with token t of a tile, 0 <= t < 16. k_token(): its inverse.
NIBBLE_HD constexpr int k_row(int t) { return t / 4 * 2 + t % 2 + t % 4 / 2 * 8; }
NIBBLE_HD constexpr int k_token(int row) { return row % 8 / 2 * 4 + row % 2 + row / 8 * 2; }

// Byte offset in K of dimension d of token t.
NIBBLE_HD constexpr int k_offset(KvType type, int t, int d) {
    const int bytes = d * kv_element_bytes(type);
    return bytes / 64 * 1024 + k_row(t) * 64 + bytes % 64;
}
// The same for V, from the beginning of V.
NIBBLE_HD constexpr int v_offset(KvType type, int t, int d) {
    const int lane = d % 16 / 2 * 4 + t / 4;
    if (type == KvType::bf16) return d / 16 * 512 + lane * 16 + d % 2 * 8 + t % 4 * 2;
    return d / 32 * 512 + lane * 16 + d % 32 / 16 * 8 + d % 2 * 4 + t % 4;
}

}  // namespace nibble::cuda
