// A rollout under way as JSON, for checkpoints: every bit of it comes back.
#pragma once

#include "rl/rollout.h"

namespace nibble {

Json rollout_json(const Rollout& rollout);
// But for `prompt`. Error: a field that is missing or of another type, lists of different lengths.
Result<Rollout> rollout_from_json(const Json& json);

}  // namespace nibble
