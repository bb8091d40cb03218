// Turns the rewards of a step's rollouts into advantages.
#pragma once

#include "rl/rl_config.h"
#include "rl/rl_step.h"
#include "rl/rollout.h"

#include <optional>
#include <span>

namespace nibble {

// Returns whether the judged answers of a group have equal rewards after scaling, which clamps. Fewer than two say
// nothing, and are equal.
bool all_equal(std::span<const Rollout> group, const std::optional<RewardScaling>& scaling);

// Scales and shapes the rewards, computes the advantages, and fills what `step` reports about answers and rewards.
// Answers that could not be judged belong to no group. Error: none could be judged.
Status weigh_rollouts(const RlConfig& config, RolloutBatch& batch, RlStep& step);

}  // namespace nibble
