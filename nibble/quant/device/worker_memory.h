// Device memory of a quantization job.
#pragma once

#include "checkpoint/checkpoint.h"
#include "quant/plan.h"

namespace nibble {

// Bytes of a job, known before anything is allocated.
struct DeviceMemoryPlan {
    int workers = 0;
    int64_t panel_bytes = 0;    // the largest panel, as it travels
    int64_t result_bytes = 0;   // the largest answer: codes, scales, statistics
    int64_t scratch_bytes = 0;  // of per-tensor searches
    int64_t kept_panels = 0;    // as many as units in flight can want

    int64_t worker_bytes() const { return panel_bytes + result_bytes + scratch_bytes; }
    int64_t least_bytes() const { return workers * worker_bytes(); }
    int64_t pinned_bytes() const { return workers * (panel_bytes + result_bytes); }
};

// Entries with a solver stay on the CPU and count for nothing.
DeviceMemoryPlan plan_device_memory(const Checkpoint& source, const Plan& plan, int workers);

inline constexpr int64_t most_kept_bytes = int64_t{16} << 30;

}  // namespace nibble
