// Computes advantages of answers from their rewards, as NeMo RL does (nemo_rl/algorithms/advantage_estimator.py and
// utils.py, read in August 2026). An answer is one sample for a prompt. The answers to one prompt form a group.
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
// Names in the order of the enum, spelled as in NeMo RL.
inline constexpr std::array<std::string_view, 4> advantage_estimator_names{"grpo", "rloo", "reinforce_plus_plus",
                                                                           "reward"};

struct AdvantageOptions {
    AdvantageEstimator estimator = AdvantageEstimator::grpo;
    bool leave_one_out = true;      // excludes the answer's own reward from its baseline and deviation
    bool normalize_rewards = true;  // divides by (s + 1e-6) where s > 0
    std::optional<double> clip_low, clip_high;
};

// Returns an error that names the keys if clip_low is above clip_high.
Status check(const AdvantageOptions& options);

// Returns one advantage per answer. rewards [answers]. groups [answers]: a number that all answers to one prompt share.
// tokens [answers]: generated tokens of each answer (reinforce_plus_plus weighs answers by them). For grpo, with n =
// group size - 1 if leave_one_out, else the group size:
//     b_i = (sum of the group's rewards, without r_i if leave_one_out) / n
//     s_i = sqrt((mean of squares - b_i^2) n / (n - 1)); 0 where this is not a number
//     A_i = (r_i - b_i) / (s_i + 1e-6) where s_i > 0, else r_i - b_i; 0 for a group of one
// Error: the sizes differ, or a reward is not finite.
Result<std::vector<double>> advantages(std::span<const double> rewards, std::span<const int64_t> groups,
                                       std::span<const int64_t> tokens, const AdvantageOptions& options);

// Computes reinforce_plus_plus with a penalty for each generated token (loss_fn.use_kl_in_reward: beta times the KL
// estimate). The group's mean is subtracted from the reward, then the penalty from each token. All tokens are then
// whitened together and clipped. penalties [answers][generated tokens]; the result has the same shape. Errors: those of
// advantages(); another estimator; a penalty that is not finite.
Result<std::vector<std::vector<double>>> token_advantages(std::span<const double> rewards,
                                                          std::span<const int64_t> groups,
                                                          std::span<const std::vector<double>> penalties,
                                                          const AdvantageOptions& options);

}  // namespace nibble
