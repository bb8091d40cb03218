// A recipe of NeMo RL (`nibble rl --from-nemo`) as a config of ours, and what of it has no counterpart here.
#pragma once

#include "base/error.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

struct NemoTranslation {
    std::string yaml;                   // parse_rl_config reads it
    std::vector<std::string> dropped;   // "file:line: key: reason": every key that is not in it
    std::vector<std::string> defaults;  // "key: ...": keys that the recipe lacks and whose defaults differ
};

// `defaults: FILE` of a recipe (text or list) is read and overridden, ${a.b} and ${mul:x, y} are put in. A recipe that
// lacks a key means NeMo RL's default (grpo_math_1B), which is written out where ours differs.
// Error: a file that is not there, YAML that is none, a recipe without policy.model_name.
Result<NemoTranslation> translate_nemo_recipe(const std::filesystem::path& file);

}  // namespace nibble
