// Plans the device memory of a quantization job.
#pragma once

#include "checkpoint/checkpoint.h"
#include "quant/plan.h"

namespace nibble {

// Bytes of a job, known before anything is allocated.
struct DeviceMemoryPlan {
    int workers = 0;
    int64_t panel_bytes = 0;    // the largest panel in the format of its transfer
    int64_t result_bytes = 0;   // the largest result: codes, scales, statistics
    int64_t scratch_bytes = 0;  // scratch memory of per-tensor searches
    int64_t kept_panels = 0;    // most panels that units in flight can keep at the same time

    int64_t worker_bytes() const { return panel_bytes + result_bytes + scratch_bytes; }
    int64_t least_bytes() const { return workers * worker_bytes(); }
    int64_t pinned_bytes() const { return workers * (panel_bytes + result_bytes); }
};

// Returns the plan. Entries with a solver stay on the CPU and are not counted.
DeviceMemoryPlan plan_device_memory(const Checkpoint& source, const Plan& plan, int workers);

inline constexpr int64_t most_kept_bytes = int64_t{16} << 30;

}  // namespace nibble
