// What an answer has gained, in the bytes that ranks hand to one another.
#pragma once

#include "rl/rollout.h"
#include "train/rank_message.h"

namespace nibble {

// Everything up to its reward, of its tokens those from `tokens` on.
void put_rollout(RankBytes& out, const Rollout& r, size_t tokens);
// Into a rollout that has the tokens before. Error: not what was put.
Status take_rollout(RankReader& in, Rollout& r);

}  // namespace nibble
