// Checks a GPU's kernels on samples against double precision, then times them next to what the GPU copies and multiplies
// in the same run. Default shapes are those of the targets in docs/results-h200.md. `nibble bench matmul --device cuda`
// and the program bench_kernels (bench/kernels/) call it.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace nibble::bench {

struct KernelBench {
    enum class Kernels : uint8_t { matmul, attention, experts, chains };
    Kernels kernels = Kernels::matmul;
    std::string device = "cuda";
    std::vector<std::string> shapes;  // NxK; attention: SEQUENCESxTOKENS; empty: those of the targets
    std::vector<int64_t> tokens;      // of products; empty: those of the targets
    std::string format;               // of products; empty: all
    int repetitions = 9;
    bool json = false;
};

// Fails where a kernel's outputs are wrong, after the whole table.
Status run_kernel_bench(const KernelBench& bench, std::FILE* out);

}  // namespace nibble::bench
