// The way back through attention over packed documents: checked on a sample of queries and keys against double
// precision, then timed.
#pragma once

#include "bench/kernel_table.h"
#include "bench/noise.h"

#include <vector>

namespace nibble::bench {

struct AttentionBackwardShape {
    int documents = 1, tokens = 0;  // of a document
    int q_heads = 32, kv_heads = 8, head_dim = 128;
};
// Of training steps that docs/results-training.md names: llama-8b, 1b, 124m.
std::vector<AttentionBackwardShape> target_attention_backward();

// `noise`: of attention_noise().
Status bench_attention_backward(Kit& kit, const std::vector<AttentionBackwardShape>& shapes,
                                const Noise<uint16_t>& noise, int repeats, KernelTable& table);

}  // namespace nibble::bench
