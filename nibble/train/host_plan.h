// Memory of a training run on a CPU, counted from shapes before masters exist: the plan of train/memory_plan.h.
#pragma once

#include "model/cpu/model.h"
#include "parallel/rank_group.h"
#include "train/memory_plan.h"
#include "train/train_config.h"

namespace nibble {

// What the process at hand trains.
struct HostRun {
    int64_t rows = 0, seq = 0;  // of a step, of this process; tokens of a row
    bool saves = false;         // checkpoints are written from a copy: rank 0's
    const Checkpoint* teacher = nullptr;
    int ranks = 1;         // of the job: they divide the optimizer's states and hand each other gradients and masters
    int64_t rollouts = 0;  // rows of a step of an engine that generates with the same model; 0: there is none
};

// Peak of the resident set, in items: what is packed for products by recipe, buffers of the tree of gradients,
// the largest block's intermediates, slabs of logits. From outlines of the model's parts alone; `model` may have no
// numbers yet. Adapters (config.lora): of `model` as it is stored. Kernels' own tiles and threads' stacks count as a
// constant. tests/train/host_plan_test.cpp has it beside what runs take.
Result<TrainMemoryPlan> plan_host_memory(const TrainConfig& config, const Checkpoint& model, const HostRun& run,
                                         ThreadPool& pool);

// Of a model that computes forward alone in this precision: what it packs for products.
Result<int64_t> plan_forward_weights(const TrainPrecision& precision, const Checkpoint& model, ThreadPool& pool);

// What this process may still take: MemAvailable and what its control groups (version 2 and 1) leave; -1: not known.
int64_t available_memory();
// The same of files below `root` ("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup/..."), for tests.
int64_t available_memory(const std::filesystem::path& root);

// What the processes of a job on one machine take together.
struct HostTogether {
    int processes = 1;
    int64_t bytes = 0;
    std::string text(const TrainMemoryPlan& own) const;  // of the process at hand, and of all
};
// Error, in all ranks: the plans of one machine's processes are more than is available there. The ranks say where they
// run and what is free before any of them takes memory. available: -1: nothing is refused. ranks: null: this process
// alone.
Result<HostTogether> check_host_memory(const TrainMemoryPlan& plan, int64_t available, RankGroup* ranks);

}  // namespace nibble
