// The quantization kernels of a GPU: every one checked bit for bit against kernels/ref, then timed beside a copy. What
// `nibble bench quantize --device cuda` and the stand-alone gpu_quantize run.
#pragma once

#include "base/json.h"
#include "cli/bench_device_check.h"
#include "cli/bench_device_timing.h"

#include <cstdio>

namespace nibble::bench {

struct DeviceBench {
    std::string device = "cuda";
    CheckOptions check;
    TimingOptions timing;
    bool checks = true, times = true;
    int64_t memory_gib = 24;  // of the device; sizes that need more are an error
};

// Prints tables to `out` (null: nothing) and puts the same into `report`. False: a check failed.
Result<bool> run_device_bench(const DeviceBench& bench, std::FILE* out, Json& report);

}  // namespace nibble::bench
