// The schema of an RL config's keys (rl/rl_config.h).
#pragma once

#include "io/schema.h"
#include "rl/rl_config.h"

#include <array>
#include <utility>

namespace nibble {

// The values as the file gives them. Groups with `enabled`, and values that are optional in RlConfig, have separate
// members.
struct RlKeys {
    RlConfig c;
    std::optional<TaskKind> task;
    bool scales = false, shapes = false, outlives = false, saves = true;
    RewardScaling scaling;
    RewardShaping shaping;
    RlAsync async;
    TrainPrecision rollouts;  // set if generation.precision is given
    // Switches given under NeMo RL's names without generation.precision.
    std::optional<int64_t> first_bf16, last_bf16;
    std::optional<bool> power_of_two;
};

// NeMo RL's names of switches, which are accepted in addition to nibble's.
inline constexpr std::array rl_switch_names{std::pair{"num_first_layers_in_bf16", "first_bf16"},
                                            std::pair{"num_last_layers_in_bf16", "last_bf16"},
                                            std::pair{"pow2_weight_scaling_factors", "power_of_two"}};

const Schema<RlKeys>& rl_schema();

}  // namespace nibble
