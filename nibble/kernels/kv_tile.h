// A tile of the paged KV cache: 16 tokens of one KV head of 128 dimensions, K then V, in the order in which lanes of
// mma.m16n8k16 read them. Plain functions, for kernels and tests.
//
// Lane 4 g + c takes, with one 16-byte load each: from K, panels of 64 bytes per token, bytes 16 c ... of rows g and
// g + 8; from V, the four tokens 4 c ... 4 c + 3 of dimensions 16 v + 2 g and 16 v + 2 g + 1. Token 4 c + i of a tile
// is row 2 c + i % 2 + 8 (i / 2) of K, so that the scores of a lane's rows are, transposed, the operand that meets its
// four tokens of V.
#pragma once

#include "formats/minifloat.h"

#include <cstdint>

namespace nibble::cuda {

enum class KvType : uint8_t { bf16, e4m3 };

inline constexpr int kv_tile_tokens = 16, kv_head_dim = 128;
NIBBLE_HD constexpr int kv_element_bytes(KvType type) { return type == KvType::bf16 ? 2 : 1; }
NIBBLE_HD constexpr int kv_half_tile_bytes(KvType type) {
    return kv_tile_tokens * kv_head_dim * kv_element_bytes(type);
}
NIBBLE_HD constexpr int kv_tile_bytes(KvType type) { return 2 * kv_half_tile_bytes(type); }

// Byte offset in the tile of K's dimension d of token t, 0 <= t < 16.
NIBBLE_HD constexpr int k_offset(KvType type, int t, int d) {
    const int bytes = d * kv_element_bytes(type), row = t / 4 * 2 + t % 2 + t % 4 / 2 * 8;
    return bytes / 64 * 1024 + row * 64 + bytes % 64;
}
// The same of V.
NIBBLE_HD constexpr int v_offset(KvType type, int t, int d) {
    const int lane = d % 16 / 2 * 4 + t / 4, half = kv_half_tile_bytes(type);
    if (type == KvType::bf16) return half + d / 16 * 512 + lane * 16 + d % 2 * 8 + t % 4 * 2;
    return half + d / 32 * 512 + lane * 16 + d % 32 / 16 * 8 + d % 2 * 4 + t % 4;
}

// One group of 512 positions of a sequence: what a thread block of the decode kernel takes at a time, per KV head.
struct AttentionUnit {
    int32_t sequence = 0, first = 0, tokens = 0;
    int32_t newest = 0;  // 1 when it holds the sequence's last token
};

}  // namespace nibble::cuda
