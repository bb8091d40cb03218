// `nibble rl --from-nemo RECIPE`: a recipe of NeMo RL as a config.
#pragma once

#include "cli/command.h"

#include <string>

namespace nibble {

// To `output`, or to standard output where it is empty; standard error gets the keys that have no counterpart.
Result<Outcome> run_from_nemo(const std::string& recipe, const std::string& output);

}  // namespace nibble
