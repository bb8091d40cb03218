// Translates a NeMo RL recipe (`nibble rl --from-nemo`) to a config of nibble and lists the keys without a counterpart.
#pragma once

#include "base/error.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble {

struct NemoTranslation {
    std::string yaml;                   // input of parse_rl_config()
    std::vector<std::string> dropped;   // "file:line: key: reason" for every key that is not translated
    std::vector<std::string> defaults;  // "key: ..." for keys that the recipe lacks and whose defaults differ in nibble
};

// Reads the recipe over the files of its `defaults` (text or list) and substitutes ${a.b} and ${mul:x, y}. A key that
// the recipe lacks has NeMo RL's default (grpo_math_1B), which is written out where nibble's default differs. Errors: a
// missing file, invalid YAML, a recipe without policy.model_name.
Result<NemoTranslation> translate_nemo_recipe(const std::filesystem::path& file);

}  // namespace nibble
