// Causal attention with grouped queries over paged keys and values.
//
// K and V lie in pages of 64 positions, page p holding positions [64 p, 64 p + 64), so that a page is a tile of the
// online softmax. A query at position t sees positions max(0, t - window + 1) .. t. Order of operations, the same for
// prefill, any chunking of it and decode, hence the same bits:
//   for each tile with a visible position, ascending:
//     s_j = (sum over d ascending of fma(q_d, k_jd, .) from +0) * scale           invisible j: -inf
//     m' = max(m, max_j s_j);  a = exp(m - m');  p_j = exp(s_j - m')               (exp_f32; m starts at -inf: a = 0)
//     l = fma(l, a, tree(p))    lane i of 16 adds p_i, p_(16+i), p_(32+i), p_(48+i); halving tree
//     o_d = (o_d * a, then fma(p_j, v_jd, .) over visible j ascending) + 0         (+ 0 turns -0 into +0)
//   y_d = o_d / l
// Every variant computes the same bits: one output, one position or one dimension is one lane.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "formats/format.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

inline constexpr int64_t kv_page_tokens = 64;
inline constexpr int64_t attention_max_dim = 640;  // of k_dim and v_dim: scratch lies on the stack

// How one element of K or V is stored. fp8: E4M3 of x / scale, saturating. nvfp4: blocks of 16 along the head
// dimension, dynamic E4M3 block scales under the tensor scale (nvfp4_dynamic_scale).
//
// fp8_page: E4M3 under scales that lie in the page, an E8M0 byte per position, head and side (K, V): the smallest power
// of two that clips nothing of that head's row (mxfp8_scale). A scale of all 64 positions is not known when the first
// of them is attended to, so decode would not give the bits of prefill; a scale of the page's first position is known
// in time, but page 0 begins with the token that models park attention on, whose V is near zero: the rest saturates. A
// row's own scale depends on that row alone, costs 1 / dim bytes per element, needs no calibration and never saturates.
enum class KvType : uint8_t { f32, bf16, fp8, nvfp4, fp8_page };

struct KvShape {
    int heads = 0, k_dim = 0, v_dim = 0;  // nvfp4: dims are multiples of 16
    KvType type = KvType::bf16;
    float k_scale = 1.0f, v_scale = 1.0f;  // fp8, nvfp4: multiply on decode
    float q_scale = 0;                     // fp8: queries, too, are rounded before they meet K; 0: they are not
    bool operator==(const KvShape&) const = default;
};

// Bytes of a page: K, then V. K is stored with positions innermost ([head][dim][64]), V with dimensions innermost
// ([head][64][dim]); nvfp4 packs two dimensions to a byte; scales (nvfp4, fp8_page) follow the codes.
int64_t kv_page_bytes(const KvShape& shape);
Status check(const KvShape& shape);

// Stores rows at positions [position, position + rows). k [rows, heads * k_dim] and v [rows, heads * v_dim], `stride`
// floats from row to row. pages[p] for p = position / 64 ... must be writable.
void kv_store(const KvShape& shape, std::byte* const* pages, int64_t position, int64_t rows, const float* k,
              int64_t k_stride, const float* v, int64_t v_stride);
// The values that attention sees for one position: k [heads * k_dim], v [heads * v_dim]. Tests and backward.
void kv_load(const KvShape& shape, const std::byte* const* pages, int64_t position, float* k, float* v);

// One segment: rows at positions [position, position + rows), whose K and V are already stored.
struct AttentionJob {
    const float* q = nullptr;  // [rows, heads * k_dim], q_stride floats from row to row
    float* y = nullptr;        // [rows, heads * v_dim]
    int64_t q_stride = 0, y_stride = 0;
    int64_t rows = 0, position = 0;
    const std::byte* const* pages = nullptr;  // indexed by tile; tiles that no row sees may be null
};

struct AttentionShape {
    KvShape kv;
    int heads = 0;  // of queries: a multiple of kv.heads
    float scale = 1.0f;
    int64_t window = 0;  // 0: all
    bool bf16 = false;   // y is rounded
};

struct AttentionKernels {
    std::string_view name;
    bool (*supported)();
    void (*attend)(const AttentionShape& shape, std::span<const AttentionJob> jobs, ThreadPool& pool);
};

// Fastest first, `ref` last.
std::span<const AttentionKernels> attention_kernels();
Result<const AttentionKernels*> select_attention_kernels(std::string_view force = {});

}  // namespace nibble
