// `nibble bench matmul|attention|experts|chains --device cuda`: a GPU's kernels at the shapes that the targets of
// docs/results-h200.md name, checked on samples against double precision first, then timed beside what the GPU
// copies and multiplies in the same run.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace nibble {

struct BenchKernelsOptions {
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
Status bench_kernels(const BenchKernelsOptions& options, std::FILE* out);

}  // namespace nibble
