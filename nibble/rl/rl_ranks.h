// What a run by several ranks must be like, told before anything starts.
#pragma once

#include "rl/rl_config.h"

namespace nibble {

// Errors: fewer prompts than ranks; rollouts in a recipe whose bits depend on the answers beside them; on GPUs a number
// that is no power of two.
Status check_rl_ranks(const RlConfig& config, int ranks, bool gpus);

}  // namespace nibble
