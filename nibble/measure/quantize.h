// `nibble bench quantize`: every quantize kernel of this CPU, checked against ref first, then timed memory to memory
// beside a memcpy of the same weights in the same run.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <cstdio>
#include <string>

namespace nibble {

struct BenchQuantizeOptions {
    int64_t rows = 8192, cols = 16384;  // 256 MiB of BF16: larger than caches
    int threads = 0;                    // the larger thread count; 0: all cores
    std::string kernel;                 // one entry; empty: all that this CPU supports
    std::string device = "cpu";         // cuda: its kernels instead, at sizes of their own
    int repetitions = 9;                // fewer where one takes over a second; the table says how many
    bool json = false;                  // JSON instead of the table
};

// Rates are BF16 bytes of the matrix per second, medians; the fraction is the median of rate / rate of the memcpy just
// before. Fails when a kernel's bytes or statistics differ from ref's, before anything is timed.
Status bench_quantize(const BenchQuantizeOptions& options, std::FILE* out);

}  // namespace nibble
