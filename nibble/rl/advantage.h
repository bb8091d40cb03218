// Advantages of answers from their rewards, as NeMo RL computes them (nemo_rl/algorithms/advantage_estimator.py and
// utils.py, read in August 2026). An answer is one sample of a prompt; the answers of one prompt are a group.
#pragma once

#include "base/error.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace nibble {

enum class AdvantageEstimator : uint8_t {
    grpo,                 // reward minus the group's baseline, over the group's standard deviation
    rloo,                 // reward minus the mean of the others, never normalised
    reinforce_plus_plus,  // reward minus the group's mean, then whitened over all tokens of the batch
    reward,               // the reward itself
};
// In their order, in NeMo RL's spelling.
inline constexpr std::array<std::string_view, 4> advantage_estimator_names{"grpo", "rloo", "reinforce_plus_plus",
                                                                           "reward"};

struct AdvantageOptions {
    AdvantageEstimator estimator = AdvantageEstimator::grpo;
    bool leave_one_out = true;      // an answer's baseline and deviation leave its own reward out
    bool normalize_rewards = true;  // divide by (s + 1e-6) where s > 0
    std::optional<double> clip_low, clip_high;
};

// Error: bounds that leave no room, by the names of their keys.
Status check(const AdvantageOptions& options);

// One advantage per answer. rewards [answers]; groups [answers]: any number that answers of one prompt share; tokens
// [answers]: generated tokens of each answer (reinforce_plus_plus weighs by them). For grpo, with n = group - 1 if
// leave_one_out else group:
//     b_i = (sum over the group, minus r_i if leave_one_out) / n
//     s_i = sqrt((mean of squares - b_i^2) n / (n - 1)); 0 where that is not a number
//     A_i = r_i - b_i, over (s_i + 1e-6) where s_i > 0;  0 for a group of one
// Error: sizes differ, a reward is not finite.
Result<std::vector<double>> advantages(std::span<const double> rewards, std::span<const int64_t> groups,
                                       std::span<const int64_t> tokens, const AdvantageOptions& options);

// reinforce_plus_plus where each generated token of an answer also pays a penalty of its own (loss_fn.use_kl_in_reward:
// beta times the KL estimate): the group's mean is taken off the reward, the penalty off each token, then all tokens
// are whitened together and clipped. penalties [answers][generated tokens]; so is what is returned. Errors: as above;
// another estimator; a penalty that is not finite.
Result<std::vector<std::vector<double>>> token_advantages(std::span<const double> rewards,
                                                          std::span<const int64_t> groups,
                                                          std::span<const std::vector<double>> penalties,
                                                          const AdvantageOptions& options);

}  // namespace nibble
