// The products of a mixture's experts in one launch, BF16, NVFP4 and FP8: checked on a sample against double precision,
// then timed with each token's experts drawn at random.
#pragma once

#include "bench/kernel_table.h"

#include <vector>

namespace nibble::bench {

struct ExpertsShape {
    int64_t n = 0, k = 0;
    int experts = 128, top_k = 6;
};
std::vector<ExpertsShape> target_experts();  // Nemotron-3-Nano's
inline constexpr std::string_view experts_baseline = "BF16 experts";

Status bench_experts(Kit& kit, const std::vector<ExpertsShape>& shapes, const std::vector<int64_t>& tokens, int repeats,
                     KernelTable& table);

}  // namespace nibble::bench
