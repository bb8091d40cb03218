// `nibble bench quantize --device cuda`: the quantization kernels of a GPU. Each is checked bit for bit against
// kernels/ref, then timed and compared with a copy.
#pragma once

#include "base/json.h"
#include "gpu_bench/quantize_check.h"
#include "gpu_bench/quantize_timing.h"

#include <cstdio>

namespace nibble::bench {

struct DeviceBench {
    std::string device = "cuda";
    CheckOptions check;
    TimingOptions timing;
    int64_t memory_gib = 24;  // device memory to use; sizes that need more are an error
};

// Prints tables to `out` (null: nothing) and writes the same to `report`. Returns false if a check failed.
Result<bool> run_device_bench(const DeviceBench& bench, std::FILE* out, Json& report);

}  // namespace nibble::bench
