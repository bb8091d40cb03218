// Arguments of the functions in kernels/attention_backward_cuda.h: plain values for host and device code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble::cuda {

// Causal attention within adjacent documents: row i sees rows max(first[i], i - window + 1) .. i.
struct AttentionBackward {
    int64_t tokens = 0;
    int q_heads = 0, kv_heads = 0, dim = 0;  // dim: 64, 96, 128, 192 or 256
    float scale = 0;
    int64_t window = 0;              // 0: unlimited
    const int32_t* first = nullptr;  // [tokens], ascending
    const std::byte* q = nullptr;    // [tokens, q_heads, dim] BF16
    const std::byte* k = nullptr;    // [tokens, kv_heads, dim]
    const std::byte* v = nullptr;
    const std::byte* o = nullptr;  // [tokens, q_heads, dim]
    const std::byte* d_o = nullptr;
    const float* log_sums = nullptr;  // [tokens, q_heads], written by attend() (kernels/attention_cuda.h)
    int64_t d_stride = 0;             // elements per row of dq, dk and dv
    std::byte* dq = nullptr;
    std::byte* dk = nullptr;
    std::byte* dv = nullptr;
    std::byte* workspace = nullptr;  // attention_backward_workspace()
};

struct LatentShape {
    int64_t tokens = 0;
    int heads = 0, nope_dim = 0, rope_dims = 0, v_dim = 0;  // v_dim is at most dim(); all are even
    bool interleaved = false;
    const int32_t* positions = nullptr;  // [tokens]
    const float* cos = nullptr;          // [positions, rope_dims / 2]
    const float* sin = nullptr;

    int dim() const { return nope_dim + rope_dims; }
    int64_t cols() const { return int64_t{heads} * dim(); }
    int64_t kv_cols() const { return int64_t{heads} * (nope_dim + v_dim); }
};

// The keys of latent_append(), and values, outputs and their gradients padded with zeros after v_dim.
struct LatentRows {
    const std::byte* kv = nullptr;                 // [tokens, kv_cols()] BF16
    const std::byte* shared = nullptr;             // [tokens, rope_dims] BF16, not rotated
    const std::byte *o = nullptr, *d_o = nullptr;  // [tokens, heads, v_dim] BF16
    std::byte *k = nullptr, *v = nullptr, *wide_o = nullptr, *wide_d_o = nullptr;  // [tokens, heads, dim()] BF16
};

// Converts gradients of rows to gradients of the products' outputs; queries in place.
struct LatentBackward {
    std::byte* dq = nullptr;                       // [tokens, heads, dim()] BF16
    const std::byte *dk = nullptr, *dv = nullptr;  // [tokens, heads, dim()] BF16
    std::byte* d_kv = nullptr;                     // [tokens, kv_cols()] BF16
    std::byte* d_shared = nullptr;                 // [tokens, rope_dims] BF16
};

// out[t] = the gradients of the first product's outputs, concatenated, BF16: of the queries (q, or q_rows in BF16), the
// latent row and the shared key. Widths are even.
struct LatentJoin {
    int64_t tokens = 0, q_width = 0, c_width = 0, shared_width = 0;
    const float* q = nullptr;           // [tokens, q_width]; if null:
    const std::byte* q_rows = nullptr;  // [tokens, q_width] BF16
    const float* c = nullptr;           // [tokens, c_width]
    const std::byte* shared = nullptr;  // [tokens, shared_width] BF16
    std::byte* out = nullptr;           // [tokens, q_width + c_width + shared_width]
};

}  // namespace nibble::cuda
