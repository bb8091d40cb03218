// Kernels called by kernels/cuda/attention/attention.cpp, which checks the arguments.
#pragma once

#include "kernels/kv_tile.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

// Constants of the order of sums (kernels/attention_cuda.h): a run's exponentials share one reference, half a run's are
// summed before they join others, a group's sums are one chain.
inline constexpr int run_tokens = 128, group_runs = 4, group_tokens = run_tokens * group_runs;

// Consecutive columns (query token, head of a KV head's group) of a segment, over consecutive groups of positions.
struct AttentionUnit {
    int32_t table, position, first_group, groups;  // position: of the segment's first token
    int32_t first_seen, last_seen, lowest;         // positions that some column sees; `lowest`: of the first column
    int32_t partial;  // index of the partial sums of its groups; -1: it has all groups and writes the output
    int32_t row, column, columns;  // row: of the segment's first token
    int32_t merge;                 // the merge of its partial sums
};
// Partial sums [first, first + count) belong to columns of one segment. The thread block that writes the last of them
// merges them.
struct AttentionMerge {
    int32_t row, column, columns, first, count;
};
// A run of positions to copy for the prefill kernel; positions [first, last] of the sequence are needed.
struct AttentionGather {
    int32_t table, position, first, last, scratch;
};
// Columns as in AttentionUnit over runs [first_run, first_run + runs); the first run is at `scratch`.
struct AttentionPrefill {
    int32_t row, position, column, columns, first_run, runs, scratch;
};
// The work list: these counts, then units, then the other lists at the given offsets (in words from the list's begin).
// `left_at`: number of finished partial sums per merge and KV head, zero between launches.
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
    float* sums = nullptr;       // [partial][KV head][column][padded v dims], not yet divided
    float2* tops = nullptr;      // [partial][KV head][column]: maximum of scores * log2(e), sum of exponentials
    uint8_t* scratch = nullptr;  // [gathered run][KV head][keys, values]
    uint8_t* out = nullptr;
    float* log_sums = nullptr;     // [row][head]; may be null
    const float* sinks = nullptr;  // [head]; may be null
    int kv_heads = 0, q_heads = 0, page_tokens = 0;
    int k_dim = 0, v_dim = 0;
    int window = 0;       // 0: unlimited
    int chunk = 0;        // 0: none
    int page_shift = -1;  // log2 of the tiles per page if that is a power of two
    int64_t table_pitch = 0, page_stride = 0;
    float scale_log2 = 0;  // factor of scores, or of their hyperbolic tangents
    float cap_scale = 0;   // factor of scores in a hyperbolic tangent; 0: none
    bool overlap = false;
};
struct AttentionKernelShape {
    KvType type = KvType::bf16;
    KvDims dims{128, 128};  // padded
    int columns = 8;        // maximum columns per unit: 8; 16 if dims.k < 256; 4 if dims.k is at most 128
};
cudaError_t prepare_attention_bf16(const AttentionKernelShape& shape, int* blocks_per_multiprocessor);
cudaError_t prepare_attention_e4m3(const AttentionKernelShape& shape, int* blocks_per_multiprocessor);
cudaError_t launch_attention_bf16(const AttentionArgs& args, const AttentionKernelShape& shape, int blocks,
                                  cudaStream_t stream);
cudaError_t launch_attention_e4m3(const AttentionArgs& args, const AttentionKernelShape& shape, int blocks,
                                  cudaStream_t stream);
// For heads of 64 or 128.
cudaError_t launch_gather(const AttentionArgs& args, KvType type, int dims, int blocks, cudaStream_t stream);
cudaError_t prepare_prefill(KvType type, int dims);
cudaError_t launch_prefill(const AttentionArgs& args, KvType type, int dims, int blocks, cudaStream_t stream);

}  // namespace nibble::cuda
