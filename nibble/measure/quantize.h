// `nibble bench quantize`: checks every quantize kernel of this CPU against ref, then times it from memory to memory
// and compares it with a memcpy of the same weights in the same run.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <cstdio>
#include <string>

namespace nibble {

struct BenchQuantizeOptions {
    int64_t rows = 8192, cols = 16384;  // 256 MiB of BF16: larger than caches
    int threads = 0;                    // larger of the measured thread counts; 0: all cores
    std::string kernel;                 // one kernel entry; empty: all that this CPU supports
    std::string device = "cpu";         // cuda: the GPU's kernels, at their own sizes
    int repetitions = 9;                // fewer if one takes over a second; the table shows the number
    bool json = false;                  // JSON instead of the table
};

// Rates are BF16 bytes of the matrix per second (medians). The fraction is the median of the rate divided by the memcpy
// rate just before. Error: a kernel's bytes or statistics differ from ref's; nothing is timed then.
Status bench_quantize(const BenchQuantizeOptions& options, std::FILE* out);

}  // namespace nibble
