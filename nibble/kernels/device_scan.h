// What a scan leaves on the device: plain data that kernels and hosts share.
#pragma once

#include <cstdint>

namespace nibble::cuda {

struct DeviceScan {
    float amax;  // over finite elements
    uint32_t reserved;
    uint64_t first_nonfinite;  // row-major index; all ones: everything is finite
};

}  // namespace nibble::cuda
