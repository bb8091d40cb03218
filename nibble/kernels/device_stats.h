// Results of measure in device memory: plain data shared by kernels and host.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// Statistics of one panel of fewer than 2^32 elements. Kernels add to the counters.
struct DeviceStats {
    uint32_t max_error_bits;  // bits of the largest error magnitude, which order like the number; NaN is largest
    uint32_t zeros, saturated, sign_flips;
    uint64_t raised_blocks;  // set by quantize
    uint32_t codes[256], scales[256];
};

// Squared error and squared weight of one row.
struct RowSums {
    double error, weight;
};

}  // namespace nibble::cuda
