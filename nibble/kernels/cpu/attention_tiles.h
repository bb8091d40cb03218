// Functions of the instruction-set files for attention_cpu.cpp: operations on one tile of 64 positions. Plain data
// only.
#pragma once

#include <cstdint>

namespace nibble::cpu {

constexpr int attention_queries = 4;  // queries that share the loads of a tile

struct AttentionTiles {
    // Decode n elements to FP32; e4m3 multiplies by `scale`.
    void (*decode_bf16)(const void* codes, int64_t n, float* out);
    void (*decode_e4m3)(const void* codes, int64_t n, float scale, float* out);
    // Decode with a factor per position: codes of K [dim][64], of V [rows][dim].
    void (*decode_e4m3_k)(const void* codes, const float* factors, int64_t dim, float* out);
    void (*decode_e4m3_v)(const void* codes, const float* factors, int64_t rows, int64_t dim, float* out);
    // Decode the layout of kernels/kv_page.h: K [dim / 2][64] with scales [dim / 16][64] to [dim][64]; V: n elements
    // with a scale per 16.
    void (*decode_e2m1_k)(const void* codes, const void* scales, int64_t dim, float tensor_scale, float* out);
    void (*decode_e2m1_v)(const void* codes, const void* scales, int64_t n, float tensor_scale, float* out);
    // s[i][j] = scale * sum over d of q[i][d] * k[d][j], for `count` queries.
    void (*scores)(const float* const* q, int count, const float* k, int64_t dim, float scale, float* s);
    void (*scores_bf16)(const float* const* q, int count, const uint16_t* k, int64_t dim, float scale, float* s);
    // s becomes soft_cap_f32(s, cap); n is a multiple of 64.
    void (*cap)(float* s, int64_t n, float cap);
    // Converts scores of the visible positions [begin, end) to weights and sets the others to 0. Updates m and l and
    // returns the factor of earlier sums.
    float (*softmax)(float* s, int64_t begin, int64_t end, float* m, float* l);
    // o[i] = o[i] * a[i], then + s[i][j] * v[j] for j in [begin, end) ascending, then + 0. width is a multiple of 16.
    void (*accumulate)(const float* s, const float* a, int count, int64_t begin, int64_t end, const float* v,
                       int64_t width, float* const* o);
    void (*accumulate_bf16)(const float* s, const float* a, int count, int64_t begin, int64_t end, const uint16_t* v,
                            int64_t width, float* const* o);
    void (*divide)(float* o, int64_t n, float l, bool bf16);
};

extern const AttentionTiles attention_avx2, attention_avx512;

}  // namespace nibble::cpu
