// Every GPU kernel against kernels/ref, bit for bit.
#pragma once

#include "base/error.h"
#include "tensor/device.h"

#include <string>
#include <vector>

namespace nibble::bench {

struct CheckOptions {
    int64_t elements = int64_t{1} << 20;  // per case; searches use fewer
    uint64_t seed = 1;
    std::string filter;  // substring of the case's name; empty for all
};

struct CheckResult {
    std::string name;   // "nvfp4 static/448 sweep bf16"
    int64_t cases = 0;  // data kinds x maxima
    int64_t elements = 0;
    int64_t mismatches = 0;  // bytes that differ
    std::string first;       // where the first one was
};

// Error only when the device fails; mismatches are results.
Result<std::vector<CheckResult>> check_all(const Stream& stream, DeviceArena& arena, const CheckOptions& options);

}  // namespace nibble::bench
