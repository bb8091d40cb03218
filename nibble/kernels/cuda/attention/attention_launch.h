// What kernels/cuda/attention/attention.cpp calls. Arguments are checked before they come here.
#pragma once

#include "kernels/kv_tile.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

// Of the order of sums (kernels/attention_cuda.h): a run's exponentials have one reference, half a run's are added up
// before they meet others, a group's sums are one chain.
inline constexpr int run_tokens = 128, group_runs = 4, group_tokens = run_tokens * group_runs;

// Consecutive columns (query token, head of a KV head's group) of a segment, over consecutive groups of positions.
struct AttentionUnit {
    int32_t table, position, first_group, groups;  // position: of the segment's first token
    int32_t first_seen, last_seen, lowest;         // positions that some column sees; `lowest`: of the first column
    int32_t partial;               // where the shares of its groups go; -1: it has all groups, out with their sum
    int32_t row, column, columns;  // row: of the segment's first token
    int32_t merge;                 // which gathers its partial sums
};
// Partial sums [first, first + count) are those of columns of a segment: who leaves the last of them adds them up.
struct AttentionMerge {
    int32_t row, column, columns, first, count;
};
// A run of positions to be laid out for the prefill kernel; positions [first, last] of the sequence are needed.
struct AttentionGather {
    int32_t table, position, first, last, scratch;
};
// Columns as in AttentionUnit over runs [first_run, first_run + runs), the first of which lies at `scratch`.
struct AttentionPrefill {
    int32_t row, position, column, columns, first_run, runs, scratch;
};
// The work list: these counts, units, and the others where the counts say (in words from the list's begin). `left_at`:
// for each merge and KV head how many partial sums there are so far, zero between launches.
struct AttentionCounts {
    int32_t units, left_at, merges_at, gathers, gathers_at, prefills, prefills_at, unused;
};
inline constexpr int unit_words = 12, merge_words = 5, gather_words = 5, prefill_words = 7, counts_words = 8;
inline constexpr int prefill_columns = 128;

struct AttentionArgs {
    const uint8_t* q = nullptr;
    const uint8_t* pages = nullptr;
    const int32_t* table = nullptr;
    int32_t* work = nullptr;
    const float* k_scales = nullptr;
    const float* v_scales = nullptr;
    float* sums = nullptr;       // [partial][KV head][column][v dims, padded], not yet divided
    float2* tops = nullptr;      // [partial][KV head][column]: maximum of the scores * log2(e), sum of the exponentials
    uint8_t* scratch = nullptr;  // [gathered run][KV head][keys, values]
    uint8_t* out = nullptr;
    float* log_sums = nullptr;  // [row][head]; null: not wanted
    int kv_heads = 0, q_heads = 0, page_tokens = 0;
    int k_dim = 0, v_dim = 0;
    int window = 0;       // 0: all
    int page_shift = -1;  // log2 of the tiles of a page where that is whole
    int64_t table_pitch = 0, page_stride = 0;
    float scale_log2 = 0;
    bool overlap = false;
};
struct AttentionKernelShape {
    KvType type = KvType::bf16;
    KvDims dims{128, 128};  // padded
    int columns = 8;        // of a unit at most: 8; 16 where dims.k < 256, 4 where it is at most 128
};
cudaError_t prepare_attention_bf16(const AttentionKernelShape& shape, int* blocks_per_multiprocessor);
cudaError_t prepare_attention_e4m3(const AttentionKernelShape& shape, int* blocks_per_multiprocessor);
cudaError_t launch_attention_bf16(const AttentionArgs& args, const AttentionKernelShape& shape, int blocks,
                                  cudaStream_t stream);
cudaError_t launch_attention_e4m3(const AttentionArgs& args, const AttentionKernelShape& shape, int blocks,
                                  cudaStream_t stream);
// Heads of 64 or 128.
cudaError_t launch_gather(const AttentionArgs& args, KvType type, int dims, int blocks, cudaStream_t stream);
cudaError_t prepare_prefill(KvType type, int dims);
cudaError_t launch_prefill(const AttentionArgs& args, KvType type, int dims, int blocks, cudaStream_t stream);

}  // namespace nibble::cuda
