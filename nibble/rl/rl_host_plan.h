// Estimates the memory of an RL run on a CPU before it starts: the plan of train/host_plan.h plus the memory of
// generation.
#pragma once

#include "rl/rl_config.h"
#include "train/host_plan.h"

namespace nibble {

// Estimates one of `ranks` processes. saves: this process writes the checkpoints. available: from available_memory();
// keys and values are limited to the engine's share of it (-1: no limit).
Result<TrainMemoryPlan> plan_rl_memory(const RlConfig& config, const Checkpoint& model, int ranks, bool saves,
                                       int64_t available, ThreadPool& pool);

}  // namespace nibble
