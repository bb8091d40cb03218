// Benchmarks the products of a mixture's experts in one launch, in BF16, NVFP4 and FP8. A sample is checked against
// double precision; then launches are timed with randomly chosen experts per token.
#pragma once

#include "gpu_bench/kernel_table.h"

#include <vector>

namespace nibble::bench {

struct ExpertsShape {
    int64_t n = 0, k = 0;
    int experts = 128, top_k = 6;
};
std::vector<ExpertsShape> target_experts();  // shapes of Nemotron-3-Nano
inline constexpr std::string_view experts_baseline = "BF16 experts";

Status bench_experts(Kit& kit, const std::vector<ExpertsShape>& shapes, const std::vector<int64_t>& tokens, int repeats,
                     KernelTable& table);

}  // namespace nibble::bench
