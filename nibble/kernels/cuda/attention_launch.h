// What kernels/cuda/attention.cpp calls. Arguments are checked before they come here.
#pragma once

#include "kernels/kv_tile.h"

#include <cuda_runtime_api.h>

namespace nibble::cuda {

inline constexpr int run_tokens = 64, group_runs = 8, group_tokens = run_tokens * group_runs, chain_groups = 16;

struct AttentionArgs {
    const uint8_t* q = nullptr;
    const uint8_t* pages = nullptr;
    const int32_t* table = nullptr;
    const AttentionUnit* units = nullptr;
    const int32_t* first_unit = nullptr;
    const float* k_scales = nullptr;
    const float* v_scales = nullptr;
    float* sums = nullptr;   // [unit][q head][128], not yet divided
    float2* tops = nullptr;  // [unit][q head]: maximum of the scores * log2(e), sum of the exponentials under it
    uint8_t* out = nullptr;
    int sequences = 0, kv_heads = 0, q_heads = 0, page_tokens = 0;
    int64_t table_pitch = 0, page_bytes = 0;
    float scale_log2 = 0;
    bool overlap = false;
};
struct AttentionShape {
    KvType type = KvType::bf16;
    int heads = 4;  // room for query heads of a KV head: 4 or 8
};
cudaError_t prepare_attention(const AttentionShape& shape, int* blocks_per_multiprocessor);
cudaError_t launch_attention(const AttentionArgs& args, const AttentionShape& shape, int blocks, cudaStream_t stream);
cudaError_t launch_merge(const AttentionArgs& args, int warps, int64_t most_chains, cudaStream_t stream);

struct AppendArgs {
    const uint16_t* k = nullptr;
    const uint16_t* v = nullptr;
    const int64_t* slots = nullptr;
    uint8_t* pages = nullptr;
    const float* k_scales = nullptr;
    const float* v_scales = nullptr;
    int64_t tokens = 0, page_bytes = 0;
    int kv_heads = 0, page_tokens = 0;
};
cudaError_t launch_append(const AppendArgs& args, KvType type, cudaStream_t stream);

}  // namespace nibble::cuda
