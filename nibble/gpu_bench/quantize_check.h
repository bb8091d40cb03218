// Checks every GPU kernel against kernels/ref, bit for bit.
#pragma once

#include "base/error.h"
#include "tensor/device.h"

#include <string>
#include <vector>

namespace nibble::bench {

struct CheckOptions {
    int64_t elements = int64_t{1} << 20;  // elements per case; searches use fewer
    uint64_t seed = 1;
    std::string filter;  // substring of the case's name; empty: all cases
};

struct CheckResult {
    std::string name;   // such as "nvfp4 static/448 sweep bf16"
    int64_t cases = 0;  // kinds of data times maxima
    int64_t elements = 0;
    int64_t mismatches = 0;  // bytes that differ
    std::string first;       // position of the first one
};

// Error: the device failed. Mismatches are results, not errors.
Result<std::vector<CheckResult>> check_all(const Stream& stream, DeviceArena& arena, const CheckOptions& options);

}  // namespace nibble::bench
