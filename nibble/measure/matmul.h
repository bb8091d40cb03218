// `nibble bench matmul`: checks the product of every format of weights and inputs against ref, then times it.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <cstdio>
#include <string>

namespace nibble {

struct BenchMatmulOptions {
    std::string device = "cpu";      // cuda: gpu_bench/kernels.h is used instead
    std::string shapes = "smollm2";  // "smollm2", "llama" or "all"
    std::string format;              // name of one row of the table; empty: all rows
    int64_t rows = 512;              // rows of the prefill
    int64_t megabytes = 64;          // MiB of weights per decoding step
    int threads = 0;                 // 0: all cores
    std::string kernel;              // one kernel entry; empty: all vector entries that this CPU supports
    std::string sums = "lanes";      // "lanes" or "tiles"
    int repetitions = 7;
    bool json = false;
};

// Decode: one row of inputs; bytes of packed weights per second, also as a fraction of the memory read rate measured
// just before. Prefill: `rows` rows; floating-point operations per second, also as a fraction of the multiply-add rate
// in registers measured just before. All values are medians. Error: a kernel's bits differ from ref's; nothing is timed
// then.
Status bench_matmul(const BenchMatmulOptions& options, std::FILE* out);

}  // namespace nibble
