// The choice of keys in sparse attention. An indexer has queries and keys of its own, fewer and smaller than those of
// attention. A query attends to the keys with the best scores only. Two kinds:
//   weighted (DeepSeek-V3.2, arXiv 2512.02556): one choice for all heads of attention,
//     I(t, s) = (w_tj * max(score_j, 0) added over heads j ascending, from +0)
//   by block (MiniMax M3): each head chooses runs of `block` positions by the largest score in the run; the `local`
//     newest runs rank above all others.
// with score_j = (sum over d ascending of fma(q_jd, k_sd, .) from +0) * scale. The query at position t sees keys s with
// s < (t + 1) / rate, and chooses all of them while they are at most `top` (keys or runs). Of equal scores, the lower
// position is chosen. A choice depends on its row only, so chunks and batches give the same bits.
#pragma once

#include "kernels/attention.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace nibble {

// Index keys: one head of K in pages of 64 positions, without values; f32 or bf16.
struct IndexShape {
    int heads = 0, dim = 0;
    KvType type = KvType::f32;
    float scale = 1.0f;
    int64_t top = 0;       // chosen keys, or runs of `block`
    bool weighted = true;  // otherwise by block
    int64_t block = 1;     // positions of a run
    int64_t local = 0;     // newest runs that are always chosen, the query's own included
    int64_t rate = 1;      // tokens per key

    KvShape keys() const { return {.heads = 1, .k_dim = dim, .v_dim = 0, .type = type}; }
    int64_t page_bytes() const { return kv_page_bytes(keys()); }
    int groups() const { return weighted ? 1 : heads; }  // choices of a row
    // Returns the number of keys that the query at `position` sees.
    int64_t visible(int64_t position) const { return (position + 1) / rate; }
    // Returns whether a query that sees `visible` keys chooses all of them, whatever their scores are.
    bool all(int64_t visible) const { return (visible + block - 1) / block <= top; }
};

// Returns the number of words that hold one bit for each of `keys` keys.
constexpr int64_t choice_words(int64_t keys) { return (keys + 63) / 64; }

// Stores the keys of positions [position, position + rows): k [rows, dim], with a stride in floats.
void index_store(const IndexShape& shape, std::byte* const* pages, int64_t position, int64_t rows, const float* k,
                 int64_t k_stride);

// Queries of one sequence at positions [position, position + rows), whose keys are stored.
struct IndexJob {
    const float* q = nullptr;        // [rows, heads * dim]; q_stride floats per row
    const float* weights = nullptr;  // [rows, heads], if weighted
    int64_t q_stride = 0, weight_stride = 0;
    int64_t rows = 0, position = 0;
    const std::byte* const* pages = nullptr;  // by tile of 64 keys
    uint64_t* chosen = nullptr;               // [rows, groups, words]: bit s % 64 of word s / 64 stands for key s
    int64_t words = 0;                        // at least choice_words() of the last row's visible keys
};

struct IndexKernels {
    std::string_view name;
    bool (*supported)();
    void (*choose)(const IndexShape& shape, std::span<const IndexJob> jobs, ThreadPool& pool);
};

// Fastest first, `ref` last.
std::span<const IndexKernels> index_kernels();
Result<const IndexKernels*> select_index_kernels(std::string_view force = {});

void set_bits(uint64_t* words, int64_t begin, int64_t end);
// Chooses from the scores of one row's visible keys and sets their bits in words that are 0. Used by all kernels.
// `scratch` is resized.
void choose_keys(const IndexShape& shape, std::span<const float> scores, std::vector<uint32_t>& scratch,
                 uint64_t* chosen);

}  // namespace nibble
