// Result of a scan in device memory: plain data shared by kernels and host.
#pragma once

#include <cstdint>

namespace nibble::cuda {

struct DeviceScan {
    float amax;  // over finite elements
    uint32_t reserved;
    uint64_t first_nonfinite;  // row-major index; all ones: all elements are finite
};

}  // namespace nibble::cuda
