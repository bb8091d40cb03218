// What happens to a reward between its environment and the advantage: NeMo RL's reward_scaling and DAPO's overlong
// shaping (nemo_rl/algorithms/reward_functions.py, read in August 2026).
#pragma once

#include "base/error.h"

#include <cstdint>
#include <optional>

namespace nibble {

// Clamped to [source_min, source_max], then mapped linearly onto [target_min, target_max].
struct RewardScaling {
    double source_min = 0, source_max = 1, target_min = 0, target_max = 1;
};

struct RewardShaping {
    // Penalty min(0, -(length - (max_length - buffer)) / buffer * penalty), added to the reward.
    bool overlong = false;
    int64_t overlong_buffer_length = 128, max_response_length = 0;
    double overlong_buffer_penalty = 1;
    // The reward of an answer that was cut off is multiplied by this.
    std::optional<double> stop_properly_penalty_coef;
};
// Error: an empty range, a buffer that is not in (0, max_response_length], a coefficient outside [0, 1].
Status check(const RewardScaling& scaling);
Status check(const RewardShaping& shaping);

double scaled_reward(double reward, const RewardScaling& scaling);
// length: generated tokens; cut: the answer reached its limit without an end.
double shaped_reward(double reward, int64_t length, bool cut, const RewardShaping& shaping);

}  // namespace nibble
