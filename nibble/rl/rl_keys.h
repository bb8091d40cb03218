// The table of the keys of an RL config (rl/rl_config.h).
#pragma once

#include "io/schema.h"
#include "rl/rl_config.h"

#include <array>
#include <utility>

namespace nibble {

// The keys of the file as values: groups with `enabled` and what is optional in RlConfig have a place of their own.
struct RlKeys {
    RlConfig c;
    std::optional<TaskKind> task;
    bool scales = false, shapes = false, outlives = false, saves = true;
    RewardScaling scaling;
    RewardShaping shaping;
    RlAsync async;
    TrainPrecision rollouts;  // where generation.precision is given
    // NeMo RL's names of switches, given without generation.precision.
    std::optional<int64_t> first_bf16, last_bf16;
    std::optional<bool> power_of_two;
};

// NeMo RL's names of switches, accepted in addition to ours.
inline constexpr std::array rl_switch_names{std::pair{"num_first_layers_in_bf16", "first_bf16"},
                                            std::pair{"num_last_layers_in_bf16", "last_bf16"},
                                            std::pair{"pow2_weight_scaling_factors", "power_of_two"}};

const Schema<RlKeys>& rl_schema();

}  // namespace nibble
