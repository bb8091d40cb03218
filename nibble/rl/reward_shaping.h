// Transforms a reward before the advantage is computed: NeMo RL's reward_scaling and DAPO's overlong shaping
// (nemo_rl/algorithms/reward_functions.py, read in August 2026).
#pragma once

#include "base/error.h"

#include <cstdint>
#include <optional>

namespace nibble {

// Rewards are numbers in [-most_reward, most_reward]: their squares and products stay far inside of FP32.
inline constexpr double most_reward = 1e15;

// Clamps to [source_min, source_max], then maps linearly to [target_min, target_max].
struct RewardScaling {
    double source_min = 0, source_max = 1, target_min = 0, target_max = 1;
};

struct RewardShaping {
    // Adds the penalty min(0, -(length - (max_length - buffer)) / buffer * penalty) to the reward.
    bool overlong = false;
    int64_t overlong_buffer_length = 128, max_response_length = 0;
    double overlong_buffer_penalty = 1;
    // Factor for the reward of an answer that was cut off.
    std::optional<double> stop_properly_penalty_coef;
};
// Errors: an empty range; a target beyond most_reward; a buffer outside (0, max_response_length]; a penalty that is
// negative or beyond most_reward; a coefficient outside [0, 1].
Status check(const RewardScaling& scaling);
Status check(const RewardShaping& shaping);

double scaled_reward(double reward, const RewardScaling& scaling);
// length: generated tokens. cut: the answer reached its limit without an end token.
double shaped_reward(double reward, int64_t length, bool cut, const RewardShaping& shaping);

}  // namespace nibble
