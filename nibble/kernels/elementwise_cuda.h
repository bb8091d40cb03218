// What lies between the products of a decoding step, on a GPU: the operations of kernels/elementwise.h with `bf16` set,
// the same bits as its `ref`, fused where that saves a pass over memory.
//
// The residual stream and all inputs of products are BF16; products hand over FP32, which is rounded to BF16 first, as
// a BF16 linear layer does. Pointers are device pointers, 16-byte aligned. All functions queue work and return at once.
// `overlap`: as in MatmulOptions. kernels/cuda_absent/ implements this header in a build without CUDA.
#pragma once

#include "kernels/attention_cuda.h"
#include "kernels/elementwise.h"

namespace nibble::cuda {

// Where rows of BF16 go: row-major, or, for products of more than eight tokens, in the order of
// cuda::permute(): tile_tokens = MatmulPlan::tiling.tokens (widths then are multiples of 64).
struct RowsOut {
    std::byte* data = nullptr;
    int tile_tokens = 0;
};

// h[t] = table[tokens[t]], rows of `width` BF16; width a multiple of 8. Tokens outside the table are the caller's to
// refuse.
Status embed(const std::byte* table, const int32_t* tokens, int64_t count, int64_t width, std::byte* h, bool overlap,
             const Stream& stream);

// h += update (where given), then out = rms_norm(h) * weight.
struct AddNorm {
    int64_t tokens = 0, width = 0;  // width: a multiple of 16, at most 32768
    std::byte* h = nullptr;         // [tokens, width] BF16
    const float* update = nullptr;  // [tokens, width]
    const float* weight = nullptr;  // [width]
    float eps = 0;
    RowsOut out;
};
Status add_norm(const AddNorm& a, bool overlap, const Stream& stream);

// out[t, j] = a(in[t, j]) * in[t, width + j]; without `gated` in is [tokens, width] and out a(in).
Status activate(Activation activation, bool gated, const float* in, int64_t tokens, int64_t width, const RowsOut& out,
                bool overlap, const Stream& stream);

// Rotary embedding of queries and keys (halves: dimension i with i + 64), keys and values into the cache.
struct RopeAppend {
    int64_t tokens = 0;
    int q_heads = 0;
    const float* qkv = nullptr;          // [tokens, (q_heads + 2 kv_heads) * 128]
    const int32_t* positions = nullptr;  // [tokens]
    const int64_t* slots = nullptr;      // as in append_kv
    const float* cos = nullptr;          // [positions, 64]
    const float* sin = nullptr;
    std::byte* q = nullptr;  // [tokens, q_heads, 128] BF16
};
Status rope_append(const RopeAppend& r, const KvCache& cache, bool overlap, const Stream& stream);

// index[t]: of the largest of `width` logits, the first of equals; NaN is larger than everything.
Status argmax(const float* logits, int64_t tokens, int64_t width, int32_t* index, bool overlap, const Stream& stream);

}  // namespace nibble::cuda
