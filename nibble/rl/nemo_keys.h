// Keys of NeMo RL's GRPO recipes that nibble does not have. Each entry has the values that change nothing here and the
// message for all other values (rl/nemo_config.h). Read in August 2026: grpo_math_1B.yaml and the recipes based on it.
#pragma once

#include <optional>
#include <string_view>

namespace nibble {

struct NemoKey {
    std::string_view key;   // a key or a group of keys
    std::string_view same;  // values of the key that change nothing, separated by " | "; "=a.b": the value of that key
    std::string_view reason;  // message for other values
    bool elsewhere = false;   // the key decides how and where a run executes, not what is learned
};

// Returns the entry of the key, or of the smallest group that contains it.
std::optional<NemoKey> find_nemo_key(std::string_view key);

// Returns the policy precision (YAML) for one of Model Optimizer's NVFP4 recipes, by its name or by the name of NeMo
// RL's file (examples/modelopt/quant_configs). Returns "" for an unknown name.
std::string nemo_quant_precision(std::string_view quant_cfg);

bool is_under(std::string_view key, std::string_view group);

}  // namespace nibble
