// Splits a list of tensors over files the way transformers' save_pretrained does (huggingface_hub,
// serialization/_base.py): in order, a new file when the next tensor would pass the limit; a tensor over the limit gets
// a file of its own, while the file being filled stays open.
#pragma once

#include "base/error.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nibble {

inline constexpr int64_t default_max_shard_bytes = 5'000'000'000;
inline constexpr std::string_view shard_index_name = "model.safetensors.index.json";

struct ShardItem {
    std::string name;
    int64_t bytes = 0;
};

struct ShardPlan {
    std::vector<std::string> files;  // "model.safetensors", or "model-00001-of-00002.safetensors" ...
    std::vector<int> file_of;        // per item, its place in `files`
    int64_t total_bytes = 0;

    bool needs_index() const { return files.size() > 1; }
};

// No items: no files. Error: a limit below 1, a negative size, a total beyond 63 bits.
Result<ShardPlan> plan_shards(std::span<const ShardItem> items, int64_t max_shard_bytes = default_max_shard_bytes);

// The text of the index as transformers writes it: {"metadata": {"total_size"}, "weight_map"}, keys sorted, two spaces,
// ASCII, a newline at the end. Error: a name twice or not UTF-8.
Result<std::string> shard_index_json(std::span<const ShardItem> items, const ShardPlan& plan);

}  // namespace nibble
