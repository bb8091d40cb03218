// One element of a page of K and V: the layout behind kernels/attention.h.
//   K  [head][dim][64]: codes, then (nvfp4) E4M3 block scales [head][dim / 16][64]
//   V  [head][64][dim]: codes, then scales [head][64][dim / 16]
// nvfp4 codes of dims 2i and 2i + 1 share byte i, the even one in the low nibble.
#pragma once

#include "formats/nvfp4.h"
#include "kernels/attention.h"

#include <cstring>

namespace nibble {

// Bytes of `count` elements with their block scales.
inline int64_t kv_codes(KvType type, int64_t count) {
    switch (type) {
        case KvType::f32:
            return count * 4;
        case KvType::bf16:
            return count * 2;
        case KvType::fp8:
            return count;
        case KvType::nvfp4:
            return count / 2;
    }
    return 0;
}
inline int64_t kv_scales(KvType type, int64_t count) { return type == KvType::nvfp4 ? count / nvfp4_block : 0; }
inline int64_t kv_k_bytes(const KvShape& s) {
    const int64_t n = int64_t{s.heads} * s.k_dim * kv_page_tokens;
    return kv_codes(s.type, n) + kv_scales(s.type, n);
}
inline int64_t kv_v_bytes(const KvShape& s) {
    const int64_t n = int64_t{s.heads} * s.v_dim * kv_page_tokens;
    return kv_codes(s.type, n) + kv_scales(s.type, n);
}

// Codes and scales of one head.
struct KvHead {
    const std::byte* codes;
    const std::byte* scales;
};
inline KvHead kv_k_head(const KvShape& s, const std::byte* page, int head) {
    const int64_t all = int64_t{s.heads} * s.k_dim * kv_page_tokens, one = int64_t{s.k_dim} * kv_page_tokens;
    return {page + kv_codes(s.type, head * one), page + kv_codes(s.type, all) + kv_scales(s.type, head * one)};
}
inline KvHead kv_v_head(const KvShape& s, const std::byte* page, int head) {
    page += kv_k_bytes(s);
    const int64_t all = int64_t{s.heads} * s.v_dim * kv_page_tokens, one = int64_t{s.v_dim} * kv_page_tokens;
    return {page + kv_codes(s.type, head * one), page + kv_codes(s.type, all) + kv_scales(s.type, head * one)};
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

// K and V as attention sees them: dimension d of position `j` of the page.
inline float kv_k(const KvShape& s, const std::byte* page, int head, int d, int64_t j) {
    const KvHead h = kv_k_head(s, page, head);
    if (s.type != KvType::nvfp4) return kv_plain(s.type, h.codes, d * kv_page_tokens + j, s.k_scale);
    return kv_e2m1(h.codes[d / 2 * kv_page_tokens + j], d % 2, h.scales[d / nvfp4_block * kv_page_tokens + j],
                   s.k_scale);
}
inline float kv_v(const KvShape& s, const std::byte* page, int head, int d, int64_t j) {
    const KvHead h = kv_v_head(s, page, head);
    if (s.type != KvType::nvfp4) return kv_plain(s.type, h.codes, j * s.v_dim + d, s.v_scale);
    return kv_e2m1(h.codes[(j * s.v_dim + d) / 2], d % 2, h.scales[(j * s.v_dim + d) / nvfp4_block], s.v_scale);
}

}  // namespace nibble
