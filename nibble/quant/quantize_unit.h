// One unit of a quantization as a sequence of stages over panels: [verify stored panels of an earlier run,] scan,
// search, quantize, finish.
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

// Data that all units of a job share.
struct JobContext {
    const Checkpoint& source;
    const Plan& plan;
    const JobOptions& options;
    const QuantizeKernels& kernels;  // kernels of this CPU, for quantized sources and solvers
    const SolverKernels& solver;
    PanelWorkers& workers;  // for all other work
    ThreadPool& pool;
    Export& out;
    Journal& journal;
    const std::vector<Unit>& units;
    std::optional<int> file;  // the only file of `out` that this job fills; no value: all
    const Journal* earlier;   // units that an earlier job finished, in a journal that is only read; null: none
    ProgressMeter& meter;
    std::vector<PanelScratch> scratch;  // per worker
    std::vector<TensorReport> reports;  // per plan entry; each is written by its unit
    std::atomic<int64_t> resumed{0}, bytes_read{0}, bytes_written{0};
    std::atomic<bool> machine_failed{false};  // the job failed because of the disk or the GPU, not because of the data

    // Returns the files that store a part of a tensor and that this job fills.
    std::vector<int> files_of(size_t index) const;
};

std::unique_ptr<UnitWork> start_unit(JobContext& job, int64_t unit);

// Returns the bytes to read for a tensor.
int64_t source_bytes(const CheckpointTensor& tensor);

// Returns the fields of a tensor's report that are known before any weight is read.
TensorReport planned_report(const Checkpoint& source, const Plan& plan, const ActivationScales& scales, size_t index);

}  // namespace nibble
