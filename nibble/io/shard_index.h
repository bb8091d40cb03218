// Parses model.safetensors.index.json, which assigns tensors to shard files.
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
    std::vector<std::string> shards;                // sorted; normalized paths inside the folder of the index
    std::unordered_map<std::string, int> shard_of;  // tensor name -> index in shards
    // metadata.total_size in bytes, if it is a whole number. Published indexes often contain a wrong value, so a
    // mismatch is at most a warning.
    std::optional<int64_t> total_size;
};

// Errors: no weight_map, a duplicate name, a value that is not a string, a path that is absolute, contains '..' or is
// not normalized. Other members of the object are ignored, as in all loaders.
Result<ShardIndex> parse_shard_index(std::string_view json);

}  // namespace nibble
