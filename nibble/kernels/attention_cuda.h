// Causal attention with grouped queries over a paged KV cache on a GPU. Prefill, chunked prefill and decode use one
// function with one order of sums, so they give the same bits.
//
// Scores are FP32. Probabilities are rounded to BF16, or to FP16 with an E4M3 cache: E4M3 values convert exactly, as do
// queries of magnitude 2^-14 ... 65504. A query at position t sees positions max(0, t - window + 1) .. t, with chunks
// those of its own chunk only. The order depends on positions only:
//   run     128 positions from a multiple of 128: s = chain over the head's dimensions (the scale not in it)
//   group   4 runs in order, from (T, l, o) = (-inf, 0, 0). Tr = the run's largest visible s * scale * log2(e);
//           T' = Tr if it is more than 8 above T, else T; a = 2^(T - T'); p = 2^fma(s, scale * log2(e), -T').
//           o: times a, then one chain over the run's 8 x 16 positions. l: eight of them, one for each class of
//           positions (the row of a tile modulo 8): tiles' two sums, four tiles in a tree, fma(l, a, first half) +
//           second half; at the group's end all eight in a tree
//   total   all groups in order from (-inf, 0, 0) by T' = max(T, Tg), a = 2^(T - T'), b = 2^(Tg - T'),
//           l' = fma(b, lg, a * l), o' = fma(b, og, a * o)
//   sink    of a head: T' = max(T, sink * log2(e)), a = 2^(T - T'), l' = fma(a, l, 2^(sink * log2(e) - T')), else a = 1
//   out     o * (v scale / l * a)
// With a cap c, s is tanh(s * (scale / c)), and c takes the place of the scale.
// A token's result therefore does not depend on the batch, on where its prompt was split, or on the number of
// multiprocessors. A row without a visible position gives zeros.
//
// The cache has pages of page_tokens tokens (a multiple of 16), [page][KV head][16-token tile][K tile, V tile].
// kernels/kv_tile.h describes the tiles. Layers of different shapes may share pages: consecutive pages are page_stride
// bytes apart. A sequence's row of the block table lists its pages. Entries of pages that no query of the launch sees
// are not read.
//
// Pointers are device pointers, 16-byte aligned. Functions queue work and return at once; they neither allocate nor
// wait.
#pragma once

#include "kernels/kernel_choice.h"
#include "kernels/kv_tile.h"
#include "tensor/device.h"

#include <span>
#include <vector>

namespace nibble::cuda {

struct KvShape {
    KvType type = KvType::bf16;
    int kv_heads = 0, page_tokens = 16;
    int k_dim = 128, v_dim = 128;  // multiples of 8, at most 512
    int64_t page_stride = 0;       // bytes, a multiple of 16; 0: page_bytes()

    KvDims dims() const { return padded_dims(k_dim, v_dim); }
    int64_t page_bytes() const {
        return int64_t{kv_heads} * page_tokens / kv_tile_tokens * kv_tile_bytes(type, dims());
    }
    int64_t stride() const { return page_stride ? page_stride : page_bytes(); }
    bool operator==(const KvShape&) const = default;
};
struct KvCache {
    KvShape shape;
    std::byte* pages = nullptr;
    const float* k_scales = nullptr;  // [kv_heads], e4m3 only: value = code * scale, scale > 0; null: 1
    const float* v_scales = nullptr;
};

// Writes k [tokens, kv_heads, k_dim] and v [tokens, kv_heads, v_dim] (BF16) to the cache. Token t goes to slots[t] =
// page * page_tokens + position in the page; a negative slot skips the token. E4M3: divided by the scale, rounded to
// nearest, saturating at 448. Padding dimensions become zeros.
Status append_kv(const KvCache& cache, const std::byte* k, const std::byte* v, const int64_t* slots, int64_t tokens,
                 const Stream& stream);

// Rows [row, row + rows) of q and out are the tokens at positions [position, position + rows) of a sequence. The cache
// already holds the sequence's K and V, including theirs. `table`: the sequence's row of the block table.
struct AttentionSegment {
    int32_t row = 0, rows = 0, position = 0, table = 0;
};

struct AttentionProblem {
    KvShape kv;
    int q_heads = 0;          // a multiple of kv_heads
    float softmax_scale = 0;  // factor of q . k, above 0
    int64_t window = 0;       // positions that a query sees, including its own; 0: all
    int64_t chunk = 0;        // a query sees positions of its own run of `chunk` only; 0: all
    float soft_cap = 0;       // c: a score s becomes c tanh(s / c); 0: it does not
    int64_t table_pitch = 0;  // pages per row of the block table
    // Maxima per launch; they size workspace and work list. Results do not depend on them.
    int64_t most_segments = 0, most_rows = 0;
    int64_t most_tokens = 0;  // per sequence, including the rows of the launch
};
struct AttentionPlan {
    AttentionProblem problem;
    int multiprocessors = 0, blocks = 0;  // blocks: number of persistent thread blocks
    int64_t partials = 0;                 // capacity of the workspace for partial sums of groups
    int64_t gathered_runs = 0;            // capacity for runs whose K and V are reordered for the prefill kernel
    int64_t work_words = 0;               // size of the largest AttentionWork in 32-bit words
    int64_t workspace_bytes = 0;
};
Result<AttentionPlan> plan_attention(const AttentionProblem& problem, const DeviceInfo& device);
// Describes the launches of attend(). The work list decides which rows each of them processes.
KernelChoice describe(const AttentionPlan& plan);

// The work list of the kernels. Made on the host once per step, for all layers with equal plans; the caller copies it
// to the device. A graph launch reads it again on every replay. Between replays positions may change, but not the
// segments' numbers of rows.
struct AttentionWork {
    std::vector<int32_t> words;  // at most AttentionPlan::work_words
};
Result<AttentionWork> attention_work(const AttentionPlan& plan, std::span<const AttentionSegment> segments);

struct AttentionInput {
    const std::byte* q = nullptr;    // [rows, q_heads, k_dim] BF16
    const int32_t* table = nullptr;  // [.., table_pitch]
    // AttentionWork::words. It contains counters that a launch uses and restores, so only one launch may use it at a
    // time.
    const int32_t* work = nullptr;
    float* log_sums =
        nullptr;  // out [rows, q_heads]: T + log2(l) of the total, for the backward pass; null: not written
    const float* sinks = nullptr;  // [q_heads]: a score of each head without a value; null: none
};
// Computes out [rows, q_heads, v_dim] BF16. `overlap`: see MatmulOptions; the previous kernel must not write the block
// table, the work list, or cache tiles of positions below `position` of a segment.
Status attend(const AttentionPlan& plan, const AttentionInput& in, const KvCache& cache, std::byte* out,
              std::byte* workspace, bool overlap, const Stream& stream);

}  // namespace nibble::cuda
