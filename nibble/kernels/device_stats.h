// What measure leaves on the device: plain data that kernels and hosts share.
#pragma once

#include <cstdint>

namespace nibble::cuda {

// Of one panel of less than 2^32 elements; counters are added to.
struct DeviceStats {
    uint32_t max_error_bits;  // of a magnitude, ordered like the number; NaN above all
    uint32_t zeros, saturated, sign_flips;
    uint64_t raised_blocks;  // by quantize
    uint32_t codes[256], scales[256];
};

// Squared error and squared weight of one row.
struct RowSums {
    double error, weight;
};

}  // namespace nibble::cuda
