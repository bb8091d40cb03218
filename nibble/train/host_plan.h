// Memory of a training run on a CPU, counted from shapes before masters exist: the plan of train/device/memory_plan.h.
#pragma once

#include "model/cpu/model.h"
#include "train/device/memory_plan.h"
#include "train/train_config.h"

namespace nibble {

// What the process at hand trains.
struct HostRun {
    int64_t rows = 0, seq = 0;  // of a step, of this process; tokens of a row
    bool saves = false;         // checkpoints are written from a copy
    const Checkpoint* teacher = nullptr;
};

// Peak of the resident set, in items: what is packed for products by recipe, buffers of the tree of gradients,
// the largest block's intermediates, slabs of logits. From outlines of the model's parts alone; `model` may have no
// numbers yet. Adapters (config.lora): of `model` as it is stored. Kernels' own tiles and threads' stacks count as a
// constant. tests/train/host_plan_test.cpp has it beside what runs take.
Result<TrainMemoryPlan> plan_host_memory(const TrainConfig& config, const Checkpoint& model, const HostRun& run,
                                         ThreadPool& pool);

// What this process may still take: MemAvailable and what its control groups (version 2 and 1) leave; -1: not known.
int64_t available_memory();
// The same of files below `root` ("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup/..."), for tests.
int64_t available_memory(const std::filesystem::path& root);

// Error: the plan, times `processes` of this machine, is more than `available` (-1: nothing is refused).
Status check_host_memory(const TrainMemoryPlan& plan, int64_t available, int processes);

}  // namespace nibble
