// Measures the peak rates of this GPU, in the same run as the kernels that are compared with them.
#pragma once

#include "gpu_bench/kit.h"
#include "kernels/vendor_cuda.h"

namespace nibble::bench {

// cuBLASLt if it can be opened; otherwise `missing` has the reason.
struct Vendor {
    std::shared_ptr<cuda::CublasLt> library;
    std::string missing;

    static Vendor open(const DeviceInfo& device);
};

// Maximum rates of several runs. Long runs lose rate to the power limit (a tenth of an H200's BF16 rate).
struct MachineRates {
    double copy = 0;              // bytes per second, read plus written, for a copy of 2 GiB
    double bf16 = 0, fp8 = 0;     // operations per second for 8192 x 8192 x 8192
    std::string bf16_by, fp8_by;  // the program with that rate: the library or nibble
};
Result<MachineRates> measure_machine(Kit& kit, const Vendor& vendor);

}  // namespace nibble::bench
