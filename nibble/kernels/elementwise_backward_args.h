// Arguments of the functions in kernels/elementwise_backward_cuda.h: plain values for host and device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

// Gradient of y = rms_norm(x) * weight. Writes dx, or with `add` adds to it; `rows` receives the same values rounded to
// BF16. Either may be null.
struct NormBackward {
    int64_t tokens = 0, width = 0;  // width: at most 16384
    const std::byte* x = nullptr;   // [tokens, width] BF16
    const float* weight = nullptr;  // [width]
    const std::byte* dy = nullptr;  // [tokens, width] BF16
    float* dx = nullptr;            // [tokens, width]; may be null
    bool add = false;
    std::byte* rows = nullptr;  // [tokens, width] BF16; may be null; may be dy
    float* dweight = nullptr;   // [width], written; may be null
    float eps = 0;
    std::byte* workspace = nullptr;  // norm_backward_workspace(width)
};

// sums[j] = sum over rows of x[row][j], for `x` in BF16 or `wide` in FP32.
struct ColumnSums {
    int64_t tokens = 0, width = 0;
    const std::byte* x = nullptr;  // [tokens, width]
    const float* wide = nullptr;
    float* sums = nullptr;           // [width], written
    std::byte* workspace = nullptr;  // column_sums_workspace(width)
};

// The q, k and v that rope_append() computes, as rows with the same bits.
struct RopeRows {
    int64_t tokens = 0;
    int q_heads = 0, kv_heads = 0, dim = 0;  // dim: a multiple of 8, at most 256
    const std::byte* qkv = nullptr;          // [tokens, (q_heads + 2 kv_heads) * dim] BF16, the product's output
    const float* q_norm = nullptr;           // [dim]; null: no norm
    const float* k_norm = nullptr;
    float eps = 0;
    int rope_dims = 0;  // 0: no rotary embedding
    bool interleaved = false;
    const int32_t* positions = nullptr;
    const float* cos = nullptr;
    const float* sin = nullptr;
    std::byte* q = nullptr;  // [tokens, q_heads, dim]
    std::byte* k = nullptr;  // [tokens, kv_heads, dim]
    std::byte* v = nullptr;
};

// dw[ids[u]] += scale * sum of rows order[begin[u]] ... order[begin[u + 1] - 1] of dx, in this order.
struct EmbeddingBackward {
    int64_t unique = 0, width = 0;
    const int32_t* ids = nullptr;
    const int32_t* begin = nullptr;
    const int32_t* order = nullptr;
    const float* dx = nullptr;
    float scale = 1.0f;
    float* dw = nullptr;
};

}  // namespace nibble::cuda
