// Checks a GPU's kernels on samples against double precision, then times them and compares them with the copy and
// multiply rates of the GPU in the same run. Default shapes are those of docs/results/README.md. `nibble bench matmul
// --device cuda` and the program bench_kernels (bench/kernels/) use it.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace nibble::bench {

struct KernelBench {
    enum class Kernels : uint8_t { matmul, attention, experts, fused_decode, delta };
    Kernels kernels = Kernels::matmul;
    std::string device = "cuda";
    std::vector<std::string> shapes;  // NxK; attention: SEQUENCESxTOKENS; empty: all shapes of the page
    std::vector<int64_t> tokens;      // rows of products; empty: those of the page
    std::string format;               // format of products; empty: all formats
    int repetitions = 9;
    bool json = false;
};

// Prints the whole table, then fails if outputs of a kernel are wrong.
Status run_kernel_bench(const KernelBench& bench, std::FILE* out);

}  // namespace nibble::bench
