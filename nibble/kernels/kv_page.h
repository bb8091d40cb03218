// The layout of one page of K and V, used by kernels/attention.h.
//   K  [head][dim][64]: codes, then scales: nvfp4 E4M3 [head][dim / 16][64], fp8_page E8M0 [head][64]
//   V  [head][64][dim]: codes, then scales: nvfp4 E4M3 [head][64][dim / 16], fp8_page E8M0 [head][64]
// nvfp4 codes of dims 2i and 2i + 1 share byte i, the even one in the low nibble.
#pragma once

#include "formats/nvfp4.h"
#include "kernels/attention.h"

#include <cstring>

namespace nibble {

// Bytes of `count` elements, and of the scales of one head with `dim` dimensions.
inline int64_t kv_codes(KvType type, int64_t count) {
    switch (type) {
        case KvType::f32:
            return count * 4;
        case KvType::bf16:
            return count * 2;
        case KvType::fp8:
        case KvType::fp8_page:
            return count;
        case KvType::nvfp4:
            return count / 2;
    }
    return 0;
}
inline int64_t kv_head_scales(KvType type, int64_t dim) {
    return type == KvType::nvfp4 ? dim / nvfp4_block * kv_page_tokens : type == KvType::fp8_page ? kv_page_tokens : 0;
}
inline int64_t kv_k_bytes(const KvShape& s) {
    return s.heads * (kv_codes(s.type, s.k_dim * kv_page_tokens) + kv_head_scales(s.type, s.k_dim));
}
inline int64_t kv_v_bytes(const KvShape& s) {
    return s.heads * (kv_codes(s.type, s.v_dim * kv_page_tokens) + kv_head_scales(s.type, s.v_dim));
}

// Codes and scales of one head.
struct KvHead {
    const std::byte* codes;
    const std::byte* scales;
};
inline KvHead kv_head(const KvShape& s, const std::byte* side, int64_t dim, int head) {
    const int64_t codes = kv_codes(s.type, dim * kv_page_tokens);
    return {side + head * codes, side + s.heads * codes + head * kv_head_scales(s.type, dim)};
}
inline KvHead kv_k_head(const KvShape& s, const std::byte* page, int head) { return kv_head(s, page, s.k_dim, head); }
inline KvHead kv_v_head(const KvShape& s, const std::byte* page, int head) {
    return kv_head(s, page + kv_k_bytes(s), s.v_dim, head);
}

inline float kv_plain(KvType type, const std::byte* codes, int64_t index, float scale) {
    if (type == KvType::f32) {
        float x;
        std::memcpy(&x, codes + 4 * index, 4);
        return x;
    }
    if (type == KvType::bf16) {
        uint16_t x;
        std::memcpy(&x, codes + 2 * index, 2);
        return bf16_to_float(x);
    }
    return e4m3_to_float(static_cast<uint8_t>(codes[index])) * scale;
}
inline float kv_e2m1(std::byte pair, bool high, std::byte scale, float tensor_scale) {
    const auto code = static_cast<uint8_t>(high ? static_cast<uint8_t>(pair) >> 4 : static_cast<uint8_t>(pair) & 15);
    return e2m1_to_float(code) * nvfp4_decode_scale(static_cast<uint8_t>(scale), tensor_scale);
}

// Returns the scale of position `j` of a head (not for nvfp4, which has block scales).
inline float kv_row_scale(const KvShape& s, const KvHead& h, int64_t j, float tensor_scale) {
    return s.type == KvType::fp8_page ? e8m0_to_float(static_cast<uint8_t>(h.scales[j])) : tensor_scale;
}

// Returns the decoded K or V: dimension d of position `j` of the page.
inline float kv_k(const KvShape& s, const std::byte* page, int head, int d, int64_t j) {
    const KvHead h = kv_k_head(s, page, head);
    if (s.type != KvType::nvfp4)
        return kv_plain(s.type, h.codes, d * kv_page_tokens + j, kv_row_scale(s, h, j, s.k_scale));
    return kv_e2m1(h.codes[d / 2 * kv_page_tokens + j], d % 2, h.scales[d / nvfp4_block * kv_page_tokens + j],
                   s.k_scale);
}
inline float kv_v(const KvShape& s, const std::byte* page, int head, int d, int64_t j) {
    const KvHead h = kv_v_head(s, page, head);
    if (s.type != KvType::nvfp4) return kv_plain(s.type, h.codes, j * s.v_dim + d, kv_row_scale(s, h, j, s.v_scale));
    return kv_e2m1(h.codes[(j * s.v_dim + d) / 2], d % 2, h.scales[(j * s.v_dim + d) / nvfp4_block], s.v_scale);
}

}  // namespace nibble
