// Benchmarks gated delta nets between their products: one token of each of several sequences, and prompts. Outputs of
// two heads are checked against double precision before the timing.
#pragma once

#include "gpu_bench/kernel_table.h"
#include "kernels/delta_rule_cuda.h"

#include <vector>

namespace nibble::bench {

struct DeltaNetShape {
    cuda::DeltaShape net;
    int sequences = 1, tokens = 1;  // tokens: of each sequence
};
// The heads of Qwen3.5-35B-A3B and of Qwen3.6-27B.
std::vector<DeltaNetShape> target_delta_nets();
inline constexpr std::string_view delta_baseline = "nothing";

Status bench_delta_nets(Kit& kit, const std::vector<DeltaNetShape>& shapes, int repeats, KernelTable& table);

}  // namespace nibble::bench
