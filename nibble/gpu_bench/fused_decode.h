// Benchmarks the products of one token between two attentions as one kernel (kernels/fused_decode_cuda.h), at the
// sizes of Llama-3.1-8B: a whole layer, and parts of it. The check requires equal bits with and without early
// loads. tests/cuda/kernels/fused_decode_test.cpp compares them with single products.
#pragma once

#include "gpu_bench/kernel_table.h"

namespace nibble::bench {

inline constexpr std::string_view fused_decode_baseline = "the same without early loads";
Status bench_fused_decode(Kit& kit, int repeats, KernelTable& table);

}  // namespace nibble::bench
