// Panels on a GPU. Every worker has a stream, a page-locked buffer each way and device memory for one panel: a thread
// copies its panel into the buffer, queues the transfer, the kernels and the way back, sleeps until they are done, and
// writes the result. While it sleeps other threads read, copy and write, so with more threads than cores disk, PCIe,
// kernels and writing overlap.
//
// Panels that are looked at twice (the maximum of a whole tensor comes before its codes) stay in device memory in
// between where there is room; where there is none they are read again.
#pragma once

#include "checkpoint/checkpoint.h"
#include "quant/panel_workers.h"
#include "quant/plan.h"
#include "tensor/device.h"

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

// Errors: no usable GPU, a plan with something that the kernels lack, too little free memory (both numbers are given).
// Nothing has been read or written then.
Result<std::unique_ptr<PanelWorkers>> open_device_workers(const DeviceChoice& choice, const Checkpoint& source,
                                                          const Plan& plan, int workers);

}  // namespace nibble
