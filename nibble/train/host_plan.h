// Estimates the memory of a training run on a CPU from shapes, before masters are allocated. It returns a plan as in
// train/memory_plan.h.
#pragma once

#include "model/cpu/model.h"
#include "parallel/rank_group.h"
#include "train/memory_plan.h"
#include "train/train_config.h"

namespace nibble {

// One process of a training run.
struct HostRun {
    int64_t rows = 0, seq = 0;  // rows of a step in this process; tokens per row
    bool saves = false;         // true for rank 0, which writes checkpoints from a copy
    const Checkpoint* teacher = nullptr;
    int ranks = 1;         // ranks of the job; they divide the optimizer's states and exchange gradients and masters
    int64_t rollouts = 0;  // rows per step of an engine that generates with the same model; 0: no engine
};

// Returns the peak resident memory by item: packed weights by recipe, buffers of the gradient tree, intermediates of
// the largest block, slabs of logits. It reads only outlines of the model's parts; `model` may have no numbers yet.
// With adapters (config.lora) `model` counts in its stored format. Tiles of kernels and stacks of threads count as a
// constant. tests/train/host_plan_test.cpp compares plans with measured runs.
Result<TrainMemoryPlan> plan_host_memory(const TrainConfig& config, const Checkpoint& model, const HostRun& run,
                                         ThreadPool& pool);

// Returns the bytes that a forward-only model packs for its products in this precision.
Result<int64_t> plan_forward_weights(const TrainPrecision& precision, const Checkpoint& model, ThreadPool& pool);

// Returns the bytes that this process can still allocate: the minimum of MemAvailable and the limits of its control
// groups (versions 1 and 2). -1: unknown.
int64_t available_memory();
// For tests: reads the files below `root` ("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup/...").
int64_t available_memory(const std::filesystem::path& root);

// Memory of all processes of a job on one machine.
struct HostTogether {
    int processes = 1;
    int64_t bytes = 0;
    std::string text(const TrainMemoryPlan& own) const;  // describes this process and all together
};
// Returns an error in all ranks if the plans of one machine's processes exceed its available memory. The ranks exchange
// their machine's name, need and free memory before any of them allocates. available: -1: nothing is refused. ranks:
// null: a single process.
Result<HostTogether> check_host_memory(const TrainMemoryPlan& plan, int64_t available, RankGroup* ranks);

}  // namespace nibble
