// One unit of a quantization as stages of panels: [check what an earlier run stored,] scan, search, quantize, finish.
#pragma once

#include "io/journal.h"
#include "quant/executor.h"
#include "quant/job.h"
#include "quant/meter.h"
#include "quant/panel_workers.h"
#include "quant/panels.h"
#include "quant/units.h"

#include <atomic>

namespace nibble {

// What all units of a job share.
struct JobContext {
    const Checkpoint& source;
    const Plan& plan;
    const JobOptions& options;
    const QuantizeKernels& kernels;  // of this machine's CPU: quantized sources, solvers
    const SolverKernels& solver;
    PanelWorkers& workers;  // everything else
    ThreadPool& pool;
    Export& out;
    Journal& journal;
    const std::vector<Unit>& units;
    ProgressMeter& meter;
    std::vector<PanelScratch> scratch;  // per worker
    std::vector<TensorReport> reports;  // per plan entry; each written by its unit
    std::atomic<int64_t> resumed{0}, bytes_read{0}, bytes_written{0};
    std::atomic<bool> machine_failed{false};  // the disk or the GPU, not the data, ended the job
};

std::unique_ptr<UnitWork> start_unit(JobContext& job, int64_t unit);

// Bytes to read for a tensor.
int64_t source_bytes(const CheckpointTensor& tensor);

// What is known of a tensor's report before any weight is read.
TensorReport planned_report(const Checkpoint& source, const Plan& plan, const ActivationScales& scales, size_t index);

}  // namespace nibble
