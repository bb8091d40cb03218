// Converts an unfinished rollout to JSON and back for checkpoints, without loss of bits.
#pragma once

#include "rl/rollout.h"

namespace nibble {

Json rollout_json(const Rollout& rollout);
// Reads all fields but `prompt`. Errors: a field is missing or has another type; lists differ in length.
Result<Rollout> rollout_from_json(const Json& json);

}  // namespace nibble
