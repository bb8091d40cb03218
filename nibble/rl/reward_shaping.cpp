#include "rl/reward_shaping.h"

#include <algorithm>

namespace nibble {

Status check(const RewardScaling& s) {
    if (!(s.source_min < s.source_max)) return fail("reward_scaling: source_min must be below source_max");
    if (!(s.target_min <= s.target_max)) return fail("reward_scaling: target_min must not be above target_max");
    if (s.target_min < -most_reward || s.target_max > most_reward)
        return fail("reward_scaling: target_min and target_max must be in [{:g}, {:g}]", -most_reward, most_reward);
    return Ok{};
}

Status check(const RewardShaping& s) {
    if (s.overlong && (s.overlong_buffer_length < 1 || s.overlong_buffer_length > s.max_response_length))
        return fail("reward_shaping: overlong_buffer_length {} is not in 1 ... max_response_length {}",
                    s.overlong_buffer_length, s.max_response_length);
    if (s.overlong && !(s.overlong_buffer_penalty >= 0 && s.overlong_buffer_penalty <= most_reward))
        return fail("reward_shaping: overlong_buffer_penalty {} is not in [0, {:g}]", s.overlong_buffer_penalty,
                    most_reward);
    if (s.stop_properly_penalty_coef && !(*s.stop_properly_penalty_coef >= 0 && *s.stop_properly_penalty_coef <= 1))
        return fail("reward_shaping: stop_properly_penalty_coef {} is not in 0 ... 1", *s.stop_properly_penalty_coef);
    return Ok{};
}

double scaled_reward(double reward, const RewardScaling& s) {
    const double share =
        (std::clamp(reward, s.source_min, s.source_max) - s.source_min) / (s.source_max - s.source_min);
    return s.target_min + share * (s.target_max - s.target_min);
}

double shaped_reward(double reward, int64_t length, bool cut, const RewardShaping& s) {
    if (cut && s.stop_properly_penalty_coef) reward *= *s.stop_properly_penalty_coef;
    if (!s.overlong) return reward;
    const auto buffer = static_cast<double>(s.overlong_buffer_length);
    const auto over = static_cast<double>(length - (s.max_response_length - s.overlong_buffer_length));
    return reward + std::min(0.0, -over / buffer * s.overlong_buffer_penalty);
}

}  // namespace nibble
