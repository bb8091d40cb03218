// The shards of a checkpoint, for `nibble inspect --shards`.
#pragma once

#include "base/json.h"
#include "checkpoint/checkpoint.h"

#include <string>

namespace nibble {

// Return the rows and bytes of every rank. Error: the model cannot be divided by this number of ranks, or nibble does
// not run its architecture.
struct ShardText {
    std::string text;
    Json json;
};
Result<ShardText> inspect_shards(const Checkpoint& checkpoint, int ranks);

}  // namespace nibble
