// Attention of one query token per sequence over a paged KV cache, on a GPU.
//
// Head dimension 128; q_heads / kv_heads = 1 ... 8 query heads share a KV head. K and V are BF16, or E4M3 with one
// scale each per KV head. Scores are FP32; probabilities are rounded to BF16 (FP16 with E4M3, whose values convert
// exactly, as do queries of magnitude 2^-14 ... 65504).
//
// One order for every batch, a function of positions only: 16 tokens a step, runs of 64 tokens with a running maximum,
// 8 runs a group (512 tokens) in one chain under the group's maximum, 16 groups a chain, chains in order. So a
// sequence's result does not depend on what else is in the batch or on how many multiprocessors there are.
//
// The cache: pages of page_tokens tokens (a multiple of 16), [page][KV head][16-token tile][K tile, V tile]; the tiles'
// insides are described in kernels/kv_tile.h. Which pages belong to a sequence says its row of the block table.
//
// Pointers are device pointers, 16-byte aligned. All functions queue work and return at once; they neither allocate nor
// wait. kernels/cuda_absent/ implements this header in a build without CUDA.
#pragma once

#include "kernels/kv_tile.h"
#include "tensor/device.h"

#include <span>
#include <vector>

namespace nibble::cuda {

struct KvShape {
    KvType type = KvType::bf16;
    int kv_heads = 0, page_tokens = 16;
    int64_t page_bytes() const { return int64_t{kv_heads} * page_tokens / kv_tile_tokens * kv_tile_bytes(type); }
};
struct KvCache {
    KvShape shape;
    std::byte* pages = nullptr;
    const float* k_scales = nullptr;  // [kv_heads], e4m3 only: value = code * scale
    const float* v_scales = nullptr;
};

// k, v [tokens, kv_heads, 128] BF16 into the cache: token t at slots[t] = page * page_tokens + place in the page; a
// negative slot skips the token. E4M3: rounded to nearest after division by the scale, saturating at 448.
Status append_kv(const KvCache& cache, const std::byte* k, const std::byte* v, const int64_t* slots, int64_t tokens,
                 const Stream& stream);

// What the kernels walk through: made on the host once per step, copied to the device by the caller.
struct AttentionWork {
    std::vector<AttentionUnit> units;  // those of a sequence follow each other
    std::vector<int32_t> first_unit;   // [sequences + 1]
};
// `lengths`: tokens of each sequence in the cache, the newest one included.
AttentionWork attention_work(std::span<const int32_t> lengths);

struct AttentionProblem {
    KvShape kv;
    int q_heads = 0;
    int sequences = 0;        // of a launch
    int64_t most_units = 0;   // that a launch may have; sizes the workspace
    int64_t most_tokens = 0;  // of a sequence
    float softmax_scale = 0;  // of q . k
    int64_t table_pitch = 0;  // pages in a row of the block table
};
struct AttentionPlan {
    AttentionProblem problem;
    int blocks = 0;  // persistent
    int merge_warps = 0;
    int64_t workspace_bytes = 0;
};
Result<AttentionPlan> plan_attention(const AttentionProblem& problem, const DeviceInfo& device);

struct AttentionInput {
    const std::byte* q = nullptr;          // [sequences, q_heads, 128] BF16
    const int32_t* table = nullptr;        // [sequences, table_pitch]
    const AttentionUnit* units = nullptr;  // AttentionWork::units
    const int32_t* first_unit = nullptr;   // AttentionWork::first_unit; the last entry is the number of units
};
// out [sequences, q_heads, 128] BF16; a sequence without tokens gives zeros. `overlap`: as in MatmulOptions; the kernel
// before must not write the block table, the units, or cache tiles other than each sequence's last.
Status decode_attention(const AttentionPlan& plan, const AttentionInput& in, const KvCache& cache, std::byte* out,
                        std::byte* workspace, bool overlap, const Stream& stream);

}  // namespace nibble::cuda
