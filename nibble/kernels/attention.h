// Causal attention with grouped queries over paged keys and values.
//
// K and V are stored in pages of 64 positions; page p holds positions [64 p, 64 p + 64), so a page is a tile of the
// online softmax. A query at position t sees positions max(0, t - window + 1) .. t, with
// chunks those of its own chunk only. Prefill, chunked prefill and decode
// use this order of operations and therefore give the same bits:
//   m = -inf, l = 0;  with a sink of the head: m = sink, l = 1
//   for each tile with a visible position, ascending:
//     s_j = (sum over d ascending of fma(q_d, k_jd, .) from +0) * scale           invisible j: -inf
//     with a cap: s_j = soft_cap_f32(s_j, cap)                                     (kernels/soft_cap.h)
//     m' = max(m, max_j s_j);  a = exp(m - m');  p_j = exp(s_j - m')               (exp_f32; from m = -inf: a = 0)
//     l = fma(l, a, tree(p))    lane i of 16 adds p_i, p_(16+i), p_(32+i), p_(48+i); halving tree
//     o_d = (o_d * a, then fma(p_j, v_jd, .) over visible j ascending) + 0         (+ 0 turns -0 into +0)
//   y_d = o_d / l
// With a choice of keys (AttentionJob::chosen), a tile without a chosen position is left out, and s_j of other
// positions that are not chosen is -inf. Every variant computes the same bits: one output, position or dimension per
// lane.
#pragma once

#include "base/error.h"
#include "base/thread_pool.h"
#include "formats/format.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace nibble {

inline constexpr int64_t kv_page_tokens = 64;
inline constexpr int64_t attention_max_dim = 640;  // limit of k_dim and v_dim; scratch is on the stack

// The storage type of K and V. fp8: E4M3 of x / scale, saturating. nvfp4: blocks of 16 along the head dimension, with
// dynamic E4M3 block scales under the tensor scale (nvfp4_dynamic_scale).
//
// fp8_page: E4M3 with scales stored in the page, an E8M0 byte per position, head and side (K, V): the smallest power of
// two that clips nothing in that head's row (mxfp8_scale). A scale for all 64 positions is not known when the first of
// them is attended to, so decode would differ from prefill. A scale from the page's first position would be known in
// time, but page 0 starts with the attention sink token, whose V is near zero: all others would saturate. A row's own
// scale depends on that row only, costs 1 / dim bytes per element, needs no calibration and never saturates.
enum class KvType : uint8_t { f32, bf16, fp8, nvfp4, fp8_page };

struct KvShape {
    int heads = 0, k_dim = 0, v_dim = 0;  // nvfp4: dims are multiples of 16
    KvType type = KvType::bf16;
    float k_scale = 1.0f, v_scale = 1.0f;  // fp8, nvfp4: multiply on decode
    float q_scale = 0;                     // fp8: also rounds queries; 0: does not
    bool operator==(const KvShape&) const = default;
};

// Returns the size of a page in bytes: K, then V. K has positions innermost ([head][dim][64]), V dimensions innermost
// ([head][64][dim]). nvfp4 packs two dimensions per byte. Scales (nvfp4, fp8_page) follow the codes.
int64_t kv_page_bytes(const KvShape& shape);
Status check(const KvShape& shape);

// Stores K and V of positions [position, position + rows): k [rows, heads * k_dim], v [rows, heads * v_dim], with
// strides in floats. pages[p] must be writable from p = position / 64 on.
void kv_store(const KvShape& shape, std::byte* const* pages, int64_t position, int64_t rows, const float* k,
              int64_t k_stride, const float* v, int64_t v_stride);
// Loads the decoded values of one position: k [heads * k_dim], v [heads * v_dim]. For tests and the backward pass.
void kv_load(const KvShape& shape, const std::byte* const* pages, int64_t position, float* k, float* v);

// Queries of one sequence at positions [position, position + rows). Their K and V are already stored.
struct AttentionJob {
    const float* q = nullptr;  // [rows, heads * k_dim]; q_stride floats per row
    float* y = nullptr;        // [rows, heads * v_dim]
    int64_t q_stride = 0, y_stride = 0;
    int64_t rows = 0, position = 0;
    const std::byte* const* pages = nullptr;  // indexed by tile; may be null for tiles that no row sees
    // The keys that each row sees of those that are visible otherwise: bit s % 64 of word s / 64 stands for position s.
    // [rows, chosen_groups, chosen_words]; group g holds for the kv.heads / chosen_groups heads of K and V from
    // g * kv.heads / chosen_groups on. Each row sees at least one key. nullptr: every key.
    const uint64_t* chosen = nullptr;
    int64_t chosen_words = 0;
    int chosen_groups = 1;

    // Returns the bits of a tile for one row and head of K and V.
    uint64_t visible_bits(int64_t row, int kv_head, int kv_heads, int64_t tile) const {
        if (!chosen) return ~uint64_t{0};
        const int64_t group = int64_t{kv_head} * chosen_groups / kv_heads;
        return tile < chosen_words ? chosen[(row * chosen_groups + group) * chosen_words + tile] : 0;
    }
};

struct AttentionShape {
    KvShape kv;
    int heads = 0;  // number of query heads, a multiple of kv.heads
    float scale = 1.0f;
    int64_t window = 0;            // 0: unlimited
    bool bf16 = false;             // rounds y to BF16
    int64_t chunk = 0;             // 0: none
    float cap = 0.0f;              // 0: none
    const float* sinks = nullptr;  // [heads], or none

    // The first position that the query at `position` sees.
    int64_t first_visible(int64_t position) const {
        const int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
        return chunk > 0 ? std::max(first, position / chunk * chunk) : first;
    }
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
