// `nibble bench matmul`: the product of every format of weights and inputs, checked against ref first, then timed.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <cstdio>
#include <string>

namespace nibble {

struct BenchMatmulOptions {
    std::string device = "cpu";      // cuda: bench/kernels.h instead
    std::string shapes = "smollm2";  // or "llama", "all"
    std::string format;              // one row of the table by name; empty: all
    int64_t rows = 512;              // of the prefill
    int64_t megabytes = 64;          // of weights that a decoding step goes through
    int threads = 0;                 // 0: all cores
    std::string kernel;              // one entry; empty: all vector entries that this CPU supports
    std::string sums = "lanes";      // or tiles
    int repetitions = 7;
    bool json = false;
};

// Decode: one row of inputs; bytes of packed weights per second and the fraction of reading as many bytes of memory
// just before. Prefill: `rows` rows; floating-point operations per second and the fraction of multiply-adds in
// registers just before. Medians, of the fractions too. Fails when a kernel's bits differ from ref's, before anything
// is timed.
Status bench_matmul(const BenchMatmulOptions& options, std::FILE* out);

}  // namespace nibble
