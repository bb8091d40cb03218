// Benchmarks the backward pass of attention over packed documents. A sample of queries and keys is checked against
// double precision before the timing.
#pragma once

#include "gpu_bench/kernel_table.h"
#include "gpu_bench/noise.h"

#include <vector>

namespace nibble::bench {

struct AttentionBackwardShape {
    int documents = 1, tokens = 0;  // tokens: per document
    int q_heads = 32, kv_heads = 8, head_dim = 128;
};
// Shapes of the training steps in docs/results/README.md: llama-8b, 1b, 124m.
std::vector<AttentionBackwardShape> target_attention_backward();

// `noise`: from attention_noise().
Status bench_attention_backward(Kit& kit, const std::vector<AttentionBackwardShape>& shapes,
                                const Noise<uint16_t>& noise, int repeats, KernelTable& table);

}  // namespace nibble::bench
