// Memory of a run of reinforcement learning on a CPU, before it has masters: the plan of train/host_plan.h with what
// generates beside the update.
#pragma once

#include "rl/rl_config.h"
#include "train/host_plan.h"

namespace nibble {

// Of one of `ranks` processes. saves: it writes the checkpoints. available: as of available_memory(); keys and values
// take no more than the engine's share of it (-1: all that they can use).
Result<TrainMemoryPlan> plan_rl_memory(const RlConfig& config, const Checkpoint& model, int ranks, bool saves,
                                       int64_t available, ThreadPool& pool);

}  // namespace nibble
