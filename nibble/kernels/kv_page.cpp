#include "kernels/kv_page.h"

#include "formats/mx.h"

#include <algorithm>
#include <cstring>

namespace nibble {
namespace {

// Encodes n elements and writes them `step` apart to an array of codes.
template <class Code, class Encode>
void scatter(const float* x, int n, std::byte* codes, int64_t step, Encode encode) {
    constexpr auto size = static_cast<int64_t>(sizeof(Code));
    Code code[64];  // encoded as vectors, then scattered
    for (int from = 0; from < n; from += 64) {
        const int count = std::min(n - from, 64);
        for (int i = 0; i < count; ++i) code[i] = encode(x[from + i]);
        for (int i = 0; i < count; ++i) std::memcpy(codes + (from + i) * step * size, &code[i], sizeof(Code));
    }
}

void put(KvType type, const float* x, int n, float scale, std::byte* codes, int64_t at, int64_t step) {
    if (type == KvType::f32)
        scatter<float>(x, n, codes + 4 * at, step, [](float v) { return v; });
    else if (type == KvType::bf16)
        scatter<uint16_t>(x, n, codes + 2 * at, step, bf16_from_float);
    else
        scatter<uint8_t>(x, n, codes + at, step, [scale](float v) { return e4m3_from_float_saturating(v / scale); });
}

// Codes and scale of a block of 16.
struct Block16 {
    uint8_t code[16];
    uint8_t scale;
};
Block16 quantize(const float* x, float tensor_scale) {
    float amax = 0;
    for (int i = 0; i < 16; ++i) amax = std::max(amax, magnitude(x[i]));
    Block16 b{};
    b.scale = nvfp4_dynamic_scale(amax, tensor_scale);
    const float decode = nvfp4_decode_scale(b.scale, tensor_scale);
    for (int i = 0; i < 16; ++i) b.code[i] = nvfp4_code(x[i], decode);
    return b;
}

// Returns the scale of a head's row and stores it if the page has one.
float row_scale(const KvShape& s, std::byte* scales, int64_t j, const float* x, int dim, float tensor_scale) {
    if (s.type != KvType::fp8_page) return tensor_scale;
    float amax = 0;
    for (int d = 0; d < dim; ++d) amax = std::max(amax, magnitude(x[d]));
    const uint8_t code = mxfp8_scale(amax);
    scales[j] = std::byte{code};
    return e8m0_to_float(code);
}

// Stores one head's K at one position: codes[(d / 2 or d) * 64 + j].
void store_k(const KvShape& s, std::byte* page, int head, int64_t j, const float* k) {
    const KvHead h = kv_k_head(s, page, head);
    auto* codes = const_cast<std::byte*>(h.codes);
    auto* scales = const_cast<std::byte*>(h.scales);
    if (s.type != KvType::nvfp4) {
        return put(s.type, k, s.k_dim, row_scale(s, scales, j, k, s.k_dim, s.k_scale), codes, j, kv_page_tokens);
    }
    for (int block = 0; block < s.k_dim / 16; ++block) {
        const Block16 b = quantize(k + 16 * block, s.k_scale);
        scales[block * kv_page_tokens + j] = std::byte{b.scale};
        for (int i = 0; i < 8; ++i)
            codes[(8 * block + i) * kv_page_tokens + j] =
                std::byte{static_cast<uint8_t>(b.code[2 * i] | b.code[2 * i + 1] << 4)};
    }
}

void store_v(const KvShape& s, std::byte* page, int head, int64_t j, const float* v) {
    const KvHead h = kv_v_head(s, page, head);
    auto* codes = const_cast<std::byte*>(h.codes);
    auto* scales = const_cast<std::byte*>(h.scales);
    if (s.type != KvType::nvfp4) {
        return put(s.type, v, s.v_dim, row_scale(s, scales, j, v, s.v_dim, s.v_scale), codes, j * s.v_dim, 1);
    }
    for (int block = 0; block < s.v_dim / 16; ++block) {
        const Block16 b = quantize(v + 16 * block, s.v_scale);
        scales[(j * s.v_dim) / 16 + block] = std::byte{b.scale};
        for (int i = 0; i < 8; ++i)
            codes[(j * s.v_dim + 16 * block) / 2 + i] =
                std::byte{static_cast<uint8_t>(b.code[2 * i] | b.code[2 * i + 1] << 4)};
    }
}

}  // namespace

int64_t kv_page_bytes(const KvShape& shape) { return kv_k_bytes(shape) + kv_v_bytes(shape); }

Status check(const KvShape& shape) {
    if (shape.heads < 1) return fail("attention with {} key heads", shape.heads);
    const int step = shape.type == KvType::nvfp4 ? nvfp4_block : 1;
    for (const int dim : {shape.k_dim, shape.v_dim})
        if (dim < 1 || dim % step != 0 || dim > attention_max_dim)
            return fail("attention heads of {} dimensions: a multiple of {} up to {} is supported", dim, step,
                        attention_max_dim);
    for (const float scale : {shape.k_scale, shape.v_scale})
        if (!(scale > 0.0f) || !is_finite(scale)) return fail("KV cache scale {} is not positive and finite", scale);
    if (!(shape.q_scale >= 0.0f) || !is_finite(shape.q_scale))
        return fail("scale {} of queries is not positive and finite", shape.q_scale);
    return Ok{};
}

void kv_store(const KvShape& shape, std::byte* const* pages, int64_t position, int64_t rows, const float* k,
              int64_t k_stride, const float* v, int64_t v_stride) {
    for (int64_t i = 0; i < rows; ++i) {
        std::byte* page = pages[(position + i) / kv_page_tokens];
        const int64_t j = (position + i) % kv_page_tokens;
        for (int head = 0; head < shape.heads; ++head) {
            store_k(shape, page, head, j, k + i * k_stride + int64_t{head} * shape.k_dim);
            store_v(shape, page, head, j, v + i * v_stride + int64_t{head} * shape.v_dim);
        }
    }
}

void kv_load(const KvShape& shape, const std::byte* const* pages, int64_t position, float* k, float* v) {
    const std::byte* page = pages[position / kv_page_tokens];
    const int64_t j = position % kv_page_tokens;
    for (int head = 0; head < shape.heads; ++head) {
        for (int d = 0; d < shape.k_dim; ++d) *k++ = kv_k(shape, page, head, d, j);
        for (int d = 0; d < shape.v_dim; ++d) *v++ = kv_v(shape, page, head, d, j);
    }
}

}  // namespace nibble
