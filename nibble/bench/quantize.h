// The quantization kernels of a GPU: every one checked bit for bit against kernels/ref, then timed beside a copy: what
// `nibble bench quantize --device cuda` runs.
#pragma once

#include "base/json.h"
#include "bench/quantize_check.h"
#include "bench/quantize_timing.h"

#include <cstdio>

namespace nibble::bench {

struct DeviceBench {
    std::string device = "cuda";
    CheckOptions check;
    TimingOptions timing;
    int64_t memory_gib = 24;  // of the device; sizes that need more are an error
};

// Prints tables to `out` (null: nothing) and puts the same into `report`. False: a check failed.
Result<bool> run_device_bench(const DeviceBench& bench, std::FILE* out, Json& report);

}  // namespace nibble::bench
