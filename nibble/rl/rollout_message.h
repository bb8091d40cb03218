// Serializes the new part of an answer for the exchange between ranks.
#pragma once

#include "rl/rollout.h"
#include "train/rank_message.h"

namespace nibble {

// Appends all fields up to the reward. Of per-token fields it appends the elements from `tokens` on.
void put_rollout(RankBytes& out, const Rollout& r, size_t tokens);
// Reads them into a rollout that has the earlier tokens. Error: malformed bytes.
Status take_rollout(RankReader& in, Rollout& r);

}  // namespace nibble
