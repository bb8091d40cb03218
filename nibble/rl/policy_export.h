// The second export of a run: the policy in the codes of its own forward products, with the scales of its FP8 KV cache.
// No value is rounded a second time.
#pragma once

#include "rl/generation_policy.h"
#include "train/train_engine.h"

#include <memory>

namespace nibble {

// Returns the format of policy_codes(). `generator` may be null. Errors: those of TrainedCodes::format_of().
Result<Format> policy_codes_format(TrainEngine& trainer, const GenerationPolicy* generator, int64_t steps);

// Returns the policy as rollouts use it after `steps` steps: the generator's codes if rollouts have their own
// precision, else the trainer's. With an FP8 cache the checkpoint contains k_scale and v_scale of every attention
// block, as the next step would use them. Trainer and generator must outlive it.
Result<std::shared_ptr<const Checkpoint>> policy_codes(TrainEngine& trainer, GenerationPolicy* generator, int64_t steps,
                                                       ThreadPool& pool);

}  // namespace nibble
