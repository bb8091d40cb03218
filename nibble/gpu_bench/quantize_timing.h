// Measures the rate of every GPU kernel relative to a device-to-device copy in the same run.
#pragma once

#include "base/error.h"
#include "tensor/device.h"

#include <string>
#include <vector>

namespace nibble::bench {

struct TimingOptions {
    std::vector<int> log2_elements{26, 28, 30};
    int repeats = 9;
    std::string filter;
};

struct Timing {
    std::string name;
    int64_t elements = 0;
    double bytes = 0;             // read plus written, each counted once
    double milliseconds = 0;      // median
    double spread = 0;            // (largest - smallest) / median
    double fraction_of_copy = 0;  // relative to the rate of the 2 GiB copy

    double rate() const { return bytes / (milliseconds * 1e-3); }  // bytes per second
    double bf16_rate() const { return 2.0 * static_cast<double>(elements) / (milliseconds * 1e-3); }
};

// The first entry is the copy. Inputs are bell-shaped. Launches alternate between buffers so that L2 is cold.
Result<std::vector<Timing>> time_all(const Stream& stream, DeviceArena& arena, const TimingOptions& options);

}  // namespace nibble::bench
