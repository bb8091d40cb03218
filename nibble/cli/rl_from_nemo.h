// `nibble rl --from-nemo RECIPE`: converts a recipe of NeMo RL to a config.
#pragma once

#include "cli/command.h"

#include <string>

namespace nibble {

// Writes the config to `output`, or to standard output if it is empty. Keys without a counterpart are listed on
// standard error. Error: the recipe cannot be read or converted.
Result<Outcome> run_from_nemo(const std::string& recipe, const std::string& output);

}  // namespace nibble
