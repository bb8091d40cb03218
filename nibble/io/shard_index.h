// model.safetensors.index.json: which shard file holds which tensor.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble {

struct ShardIndex {
    std::vector<std::string> shards;  // sorted; plain paths relative to the index, never out of its folder
    std::unordered_map<std::string, int> shard_of;  // tensor name -> place in shards
    // metadata.total_size, bytes, where it is a whole number. Published indexes are often wrong about it: tell, do not
    // refuse.
    std::optional<int64_t> total_size;
};

// Errors: no weight_map, a name twice, a value that is not a string, a path that is absolute, has '..' or is not in its
// plain form. Other members of the object are skipped, as every loader does.
Result<ShardIndex> parse_shard_index(std::string_view json);

}  // namespace nibble
