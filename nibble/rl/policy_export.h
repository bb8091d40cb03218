// What a run leaves to serve beside the plain model: the policy in the codes of its own forward products, with the
// scales of its FP8 KV cache. Nothing is rounded a second time.
#pragma once

#include "rl/generation_policy.h"
#include "train/train_engine.h"

#include <memory>

namespace nibble {

// The format of policy_codes(); `generator` may be null. Errors: as TrainedCodes::format_of.
Result<Format> policy_codes_format(TrainEngine& trainer, const GenerationPolicy* generator, int64_t steps);

// The policy as rollouts see it behind `steps` steps: a generator's codes if it has a precision of its own, else the
// trainer's. With an FP8 cache it has k_scale and v_scale of every attention block, as the next step would have had
// them. Trainer and generator outlive it.
Result<std::shared_ptr<const Checkpoint>> policy_codes(TrainEngine& trainer, GenerationPolicy* generator, int64_t steps,
                                                       ThreadPool& pool);

}  // namespace nibble
