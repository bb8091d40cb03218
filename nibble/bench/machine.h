// What this very GPU does at best, measured in the run whose times are set against it.
#pragma once

#include "bench/kit.h"
#include "kernels/vendor_cuda.h"

namespace nibble::bench {

// cuBLASLt where it can be opened; `missing` says why not.
struct Vendor {
    std::shared_ptr<cuda::CublasLt> library;
    std::string missing;

    static Vendor open(const DeviceInfo& device);
};

// The fastest of several runs: long ones meet the limit of power (a tenth of an H200's BF16 rate).
struct MachineRates {
    double copy = 0;              // bytes per second, read and written, of a copy of 2 GiB
    double bf16 = 0, fp8 = 0;     // operations per second, 8192 x 8192 x 8192, of
    std::string bf16_by, fp8_by;  // the library or this program
};
Result<MachineRates> measure_machine(Kit& kit, const Vendor& vendor);

}  // namespace nibble::bench
