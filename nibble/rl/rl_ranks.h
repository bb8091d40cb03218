// Checks, before anything starts, whether a config can run with several ranks.
#pragma once

#include "rl/rl_config.h"

namespace nibble {

// Errors: fewer prompts than ranks; a recipe in which rollouts depend on the other answers of a batch; on GPUs, a
// number of ranks that is not a power of two.
Status check_rl_ranks(const RlConfig& config, int ranks, bool gpus);

}  // namespace nibble
