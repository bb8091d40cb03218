// Keys of NeMo RL's GRPO recipes that nibble has no key for: the values under which NeMo RL does what a run here does
// anyhow, and what a translation (rl/nemo_config.h) says of all others. Read in August 2026, grpo_math_1B.yaml and what
// stands on it.
#pragma once

#include <optional>
#include <string_view>

namespace nibble {

struct NemoKey {
    std::string_view key;     // or a group of keys
    std::string_view same;    // of the key alone, " | " between them; "=a.b": the value of that key
    std::string_view reason;  // of other values
    bool elsewhere = false;   // it says how and where a run runs, not what is learned
};

// The entry of the key, or of the smallest group that it is in.
std::optional<NemoKey> find_nemo_key(std::string_view key);

// Whether the key is the group or in it.
// A precision of policies (YAML) for Model Optimizer's NVFP4 recipes, by their names or by the names of NeMo RL's files
// (examples/modelopt/quant_configs); "": another one.
std::string nemo_quant_precision(std::string_view quant_cfg);

bool is_under(std::string_view key, std::string_view group);

}  // namespace nibble
