// Benchmarks attention over a paged cache: decode with BF16 and E4M3 caches, and prefill. A sample of queries and heads
// is checked against double precision before the timing.
#pragma once

#include "gpu_bench/kernel_table.h"
#include "gpu_bench/noise.h"
#include "kernels/attention_cuda.h"

#include <vector>

namespace nibble::bench {

struct AttentionShape {
    bool prefill = false;  // `tokens` queries of one sequence; false: the last query of each sequence
    int sequences = 1, tokens = 0;
    cuda::KvType type = cuda::KvType::bf16;
    int q_heads = 32, kv_heads = 8, head_dim = 128, page_tokens = 16;
};
std::vector<AttentionShape> target_attention();
// The baseline of an E4M3 shape is the same shape with a BF16 cache, which must come before it.
inline constexpr std::string_view attention_baseline = "the same with a BF16 cache";

Result<Noise<uint16_t>> attention_noise(Kit& kit);
// Returns one line, which is timed unless its check fails.
Result<KernelRow> attention_row(Kit& kit, const AttentionShape& shape, const Noise<uint16_t>& noise, int repeats);
Status bench_attention(Kit& kit, const std::vector<AttentionShape>& shapes, const Noise<uint16_t>& noise, int repeats,
                       KernelTable& table);

}  // namespace nibble::bench
